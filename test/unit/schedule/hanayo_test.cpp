// SPDX-License-Identifier: Apache-2.0
#include <stagger/schedule/hanayo.hpp>

#include <limits>

#include "grid.hpp"

namespace hanayo_test {

using namespace grid;

TEST_CASE(
    "schedule/Hanayo: bubble (P-1)(F+B) of one chunk at B = F, at most P microbatches in flight",
    "[schedule]") {
  each([](int P, int M) {
    for (int waves = 1; waves <= 2; ++waves) {
      Hanayo const policy{waves};
      if (M % P != 0) {
        REQUIRE_THROWS_AS(policy.table({P, M, policy.chunks()}), Error);
        continue;
      }
      Evaluation const e = evaluated(legal(policy, P, M), Costs::uniform(2, 1, 1));
      REQUIRE(e.bubble_s == (P - 1) * 4.0);
      REQUIRE(highest(e.peak_in_flight) <= 2 * waves * P);
    }
  });
}

TEST_CASE("schedule/Hanayo: an illegal count is refused with the nearest legal one", "[schedule]") {
  CHECK_THROWS_WITH(Hanayo{}.table({4, 11, 2}), Catch::Contains("11 microbatches") &&
                                                    Catch::Contains("nearest legal value is 12"));
  CHECK_THROWS_WITH(Hanayo{}.table({4, 1, 2}), Catch::Contains("nearest legal value is 4"));
  CHECK_THROWS_WITH(Hanayo{0}.table({4, 4, 0}), Catch::Contains("0 chunks"));
  for (int const waves : {1 << 30, std::numeric_limits<int>::max()}) {
    Hanayo const policy{waves};
    CHECK_THROWS_WITH(policy.table({1, 1, policy.chunks()}),
                      Catch::Contains("2147483646 chunks") && Catch::Contains("less than 2^29"));
  }
  CHECK(Hanayo{std::numeric_limits<int>::min()}.chunks() == 0);
}

}  // namespace hanayo_test
