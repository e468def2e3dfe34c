// SPDX-License-Identifier: Apache-2.0
#include <stagger/schedule/fifo.hpp>

#include <limits>

#include <stagger/staleness/wave_synchronous.hpp>

#include "grid.hpp"

namespace fifo_test {

using namespace grid;
using stagger::staleness::WaveSynchronous;

TEST_CASE("schedule/Fifo: equal costs, four injected, as played by hand", "[schedule]") {
  CHECK(write_csv(Fifo{.in_flight = 4}.table({3, 5})) ==
        "0F0,0F1,0F2,0F3,0B0,0F4,0B1,0B2,0B3,0B4\n"
        "1F0,1F1,1F2,1F3,1B0,1B1,1F4,1B2,1B3,1B4\n"
        "2F0,2B0,2F1,2B1,2F2,2B2,2F3,2B3,2F4,2B4\n");
}

TEST_CASE(
    "schedule/Fifo: never more than Nm in flight, last stage in adjacent pairs, each rank in order "
    "of readiness",
    "[schedule]") {
  each([](int P, int M) {
    if (M > 12) return;
    for (int limit = 1; limit <= P + 1; ++limit) {
      Costs costs;
      for (int s = 0; s < P; ++s)
        costs.stages.push_back({.forward_s = 1.0 + s % 3,
                                .backward_input_s = 2.0 - s % 2,
                                .transfer_s = 0.5 * (s % 4)});
      Table const t = legal(Fifo{limit, costs}, P, M);
      REQUIRE(highest(peak_in_flight(t)) <= limit);
      auto const last = t.row(P - 1);
      for (std::size_t i = 0; i < last.size(); ++i) {
        REQUIRE(last[i].kind == (i % 2 == 0 ? Kind::forward : Kind::backward));
        REQUIRE(last[i].microbatch == static_cast<int>(i / 2));
      }
      // Of two neighbours in a row, the later one was not ready strictly before the earlier one.
      Evaluation const e = evaluated(t, costs);
      auto const end = [&](Kind kind, int stage, int m) {
        for (Span const& s : e.timeline.row(stage)) {
          if (s.action.kind == kind && s.action.microbatch == m) return s.end_s;
        }
        return -1.0;
      };
      for (int r = 0; r + 1 < P; ++r) {
        auto const ready = [&](Action const& a) {
          double const link = costs.of(a.kind == Kind::forward ? r - 1 + (r == 0) : r).transfer_s;
          if (a.kind == Kind::backward) return end(Kind::backward, r + 1, a.microbatch) + link;
          if (r == 0)
            return a.microbatch < limit ? 0.0 : end(Kind::backward, 0, a.microbatch - limit);
          return end(Kind::forward, r - 1, a.microbatch) + link;
        };
        auto const row = t.row(r);
        for (std::size_t i = 0; i + 1 < row.size(); ++i)
          REQUIRE(ready(row[i]) <= ready(row[i + 1]));
      }
    }
  });
}

TEST_CASE("schedule/Fifo: a forward that a gate holds up is listed behind what need not wait",
          "[schedule]") {
  // One wave of two; the answer takes so long that both of the next wave's backwards come first.
  CHECK(write_csv(Fifo{.in_flight = 2,
                       .gate = {.model = WaveSynchronous{2}, .links = {{.latency_s = 25}}}}
                      .table({2, 4})) ==
        "0F0,0F1,0B0,0F2,0B1,0B2,0F3,0B3\n"
        "1F0,1B0,1F1,1B1,1F2,1B2,1F3,1B3\n");
  each([](int P, int M) {
    if (M > 12) return;
    for (int limit = 1; limit <= P + 1; ++limit) {
      auto const open = legal(Fifo{.in_flight = limit}, P, M);
      for (int distance : {0, 1, 20}) {
        auto const gated = legal(Fifo{.in_flight = limit,
                                      .gate = {.model = WaveSynchronous{limit, distance},
                                               .links = {{.latency_s = 2.5}}}},
                                 P, M);
        REQUIRE(highest(peak_in_flight(gated)) <= limit);
        if (distance == 20) REQUIRE(gated.actions == open.actions);  // it never shuts
      }
    }
  });
  CHECK_THROWS_WITH(
      (Fifo{.gate = {.model = WaveSynchronous{1}, .links = {{.latency_s = -1}}}}.table({2, 4})),
      Catch::Contains("Links::latency_s"));
}

TEST_CASE("schedule/Fifo: refuses fields of a gate that it would ignore", "[schedule]") {
  WaveGate const ignored[] = {{.links = {{}}},
                              {.layer_bytes = {4, 4}},
                              {.cuts = {1}},
                              {.layer_links = {0}},
                              {.others = {{}}}};
  for (WaveGate const& gate : ignored)
    CHECK_THROWS_WITH((Fifo{.gate = gate}.table({2, 4})),
                      Catch::Contains("nothing else of the gate counts"));
}

TEST_CASE("schedule/Fifo: a limit above the number of microbatches is none", "[schedule]") {
  Shape const shape{3, 5};
  CHECK(Fifo{.in_flight = std::numeric_limits<int>::max()}.table(shape) ==
        Fifo{.in_flight = 5}.table(shape));
}

TEST_CASE("schedule/Fifo: costs that are not numbers are refused", "[schedule]") {
  CHECK_THROWS_AS((Fifo{2, Costs::uniform(1, -1, 1)}.table({2, 4})), Error);
  CHECK_THROWS_AS((Fifo{2, Costs::uniform(1, 1, std::nan(""))}.table({2, 4})), Error);
  CHECK_THROWS_WITH((Fifo{-2, {}}.table({2, 4})), Catch::Contains("-2"));
}

}  // namespace fifo_test
