// SPDX-License-Identifier: Apache-2.0
#include <stagger/schedule/evaluate.hpp>

#include <limits>
#include <random>

#include <stagger/schedule/lower.hpp>

#include "catch.hpp"
#include "oracle.hpp"
#include "zoo.hpp"

using namespace stagger;
using namespace stagger::schedule;

namespace {

Costs random_costs(int stages, std::mt19937& random) {
  std::uniform_int_distribution<int> eighths(0, 24);
  Costs costs;
  for (int s = 0; s < stages; ++s) {
    costs.stages.push_back({.forward_s = eighths(random) / 8.0,
                            .backward_input_s = eighths(random) / 8.0,
                            .backward_weight_s = eighths(random) / 8.0,
                            .transfer_s = eighths(random) / 8.0});
  }
  if (random() % 2 == 0) costs.overlap_s = eighths(random) / 8.0;
  return costs;
}

}  // namespace

TEST_CASE(
    "schedule/evaluate: makespan, span, work and peak agree with the slow simulator at any costs",
    "[schedule]") {
  std::mt19937 random(99);
  for (int round = 0; round < 12; ++round) {
    for (auto const& [name, table] : zoo::all(4, 8)) {
      CAPTURE(name, round);
      Costs const costs = random_costs(table.stages, random);
      Evaluation const e = evaluate(table, costs);
      auto const truth = oracle::play(table, costs);
      REQUIRE(truth.ok);
      CHECK(e.makespan_s == Approx(truth.makespan));
      CHECK(e.longest_span_s == Approx(truth.longest_span));
      CHECK(e.peak_in_flight == truth.peak);
      double busiest = 0;
      for (std::size_t r = 0; r < e.work_s.size(); ++r) {
        CHECK(e.work_s[r] == Approx(truth.work[r]).margin(1e-12));
        CHECK(e.idle[r].total_s() + e.work_s[r] ==
              Approx(e.timeline.rows[r].empty() ? 0 : e.makespan_s));
        busiest = std::max(busiest, truth.work[r]);
      }
      CHECK(e.bubble_s == Approx(truth.makespan - busiest).margin(1e-12));
      CHECK(e.span_bubble_s == Approx(truth.longest_span - busiest).margin(1e-12));
    }
  }
}

TEST_CASE(
    "schedule/evaluate: tables with messages agree with the slow simulator on every kind of "
    "channel",
    "[schedule]") {
  std::mt19937 random(5);
  for (int round = 0; round < 3; ++round) {
    for (auto const& [name, table] : zoo::all(2, 4)) {
      Costs costs = random_costs(table.stages, random);
      costs.overlap_s = -1;
      Table const lowered = lower(table, costs);
      for (Channels const channels :
           {Channels::independent, Channels::per_peer, Channels::per_rank}) {
        CAPTURE(name, round, static_cast<int>(channels));
        auto const truth = oracle::play_messages(lowered, static_cast<int>(channels), costs);
        REQUIRE(truth.ok);
        CHECK(evaluate(lowered, costs, channels).makespan_s == Approx(truth.makespan));
      }
    }
  }
}

TEST_CASE("schedule/evaluate: idle time by cause, by hand", "[schedule]") {
  // 0F0 0..1, sent until 1.5; 1F0 1.5..2.5, 1B0 ..4.5, sent until 5; 0B0 5..7.
  Evaluation const e = evaluate(oracle::table("0F0,0B0 / 1F0,1B0"), Costs::uniform(1, 1, 1, 0.5));
  CHECK(e.makespan_s == 7);
  CHECK(e.longest_span_s == 7);
  CHECK(e.work_s == std::vector{3.0, 3.0});
  CHECK(e.idle[0].dependency_s == 3.5);
  CHECK(e.idle[0].link_s == 0.5);
  CHECK(e.idle[1].dependency_s == 3.5);  // 1 before the first action, 2.5 behind the last
  CHECK(e.idle[1].link_s == 0.5);
  CHECK(e.timeline.rows[1][1].start_s == 2.5);
  CHECK(e.timeline.rows[1][1].end_s == 4.5);
}

TEST_CASE("schedule/evaluate: bytes are held from F, and in part from I to W", "[schedule]") {
  Costs costs;
  costs.stages = {{.activation_bytes = 100, .weight_share = 0.25},
                  {.activation_bytes = 10, .weight_share = 0.5}};
  CHECK(evaluate(OneFOneB{}.table({2, 4}), costs).peak_bytes == std::vector{200.0, 10.0});
  // 0F0 100, 0F1 200, 0I0 125, 0F2 225: the W of the first is late.
  CHECK(evaluate(oracle::table("0F0,0F1,0I0,0F2,0W0,0I1,0W1,0I2,0W2 / 1F0,1B0,1F1,1B1,1F2,1B2"),
                 costs)
            .peak_bytes == std::vector{225.0, 10.0});
  CHECK(
      evaluate(oracle::table("0F0,(0F1;0B0)OVERLAP_F_B,0B1 / 1F0,1B0,1F1,1B1"), costs).peak_bytes ==
      std::vector{200.0, 10.0});
}

TEST_CASE(
    "schedule/evaluate: refuses costs that are not finite and not negative, and tables that never "
    "end",
    "[schedule]") {
  Table const t = OneFOneB{}.table({2, 4});
  CHECK_THROWS_WITH(evaluate(t, Costs::uniform(1, -2, 1)),
                    Catch::Contains("stage 0") && Catch::Contains("backward_input_s = -2"));
  CHECK_THROWS_AS(evaluate(t, Costs::uniform(1, 1, std::numeric_limits<double>::quiet_NaN())),
                  Error);
  CHECK_THROWS_AS(evaluate(t, Costs::uniform(1, 1, 1, std::numeric_limits<double>::infinity())),
                  Error);
  Costs three;
  three.stages.resize(3);
  CHECK_THROWS_WITH(evaluate(t, three), Catch::Contains("3 stages") && Catch::Contains("has 2"));
  CHECK_THROWS_WITH(evaluate(oracle::table("0F0,0B0,0F1,0B1 / 1F0,1F1,1B0,1B1")),
                    Catch::Contains("waits for ever"));
  CHECK_THROWS_AS(evaluate(oracle::table("0F0,2000000000F2000000000")), Error);
}
