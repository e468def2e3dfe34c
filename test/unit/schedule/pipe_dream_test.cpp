// SPDX-License-Identifier: Apache-2.0
#include <stagger/schedule/pipe_dream.hpp>

#include "grid.hpp"

namespace pipe_dream_test {

using namespace grid;

TEST_CASE("schedule/PipeDream: as many versions as minibatches in flight, P - r", "[schedule]") {
  each([](int P, int M) {
    for (int limit = 0; limit <= P; ++limit) {
      PipeDream const policy{limit};
      auto const peak = peak_in_flight(legal(policy, P, M));
      for (int r = 0; r < P; ++r) {
        REQUIRE(policy.weight_versions({P, M}, r) == peak[static_cast<std::size_t>(r)]);
        if (limit == 0 && M >= P) REQUIRE(peak[static_cast<std::size_t>(r)] == P - r);
        if (limit > 0) REQUIRE(peak[static_cast<std::size_t>(r)] <= limit);
      }
    }
  });
  STATIC_REQUIRE_FALSE(PipeDream::flushes);
}

TEST_CASE("schedule/PipeDream: between filling and draining no rank idles", "[schedule]") {
  for (int P = 1; P <= 8; ++P) {
    Evaluation const e = evaluated(PipeDream{}.table({P, 32}), Costs::uniform(2, 2, 2));
    for (int r = 0; r < P; ++r) {
      auto const row = e.timeline.row(r);
      for (std::size_t i = 1; i < row.size(); ++i) {
        bool const steady = row[i - 1].action.microbatch >= P && row[i].action.microbatch < 32 - P;
        if (steady) REQUIRE(row[i].start_s == row[i - 1].end_s);
      }
    }
  }
}

}  // namespace pipe_dream_test
