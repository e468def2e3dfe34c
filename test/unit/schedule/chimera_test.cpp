// SPDX-License-Identifier: Apache-2.0
#include <stagger/schedule/chimera.hpp>

#include "grid.hpp"

namespace chimera_test {

using namespace grid;

TEST_CASE("schedule/Chimera: bubble fractions of the paper for M = P", "[schedule]") {
  for (int P = 2; P <= 16; P += 2) {
    int const M = P;
    Table const t = legal(Chimera{}, P, M);
    Evaluation const equal = evaluated(t, Costs::uniform(2, 1, 1));
    CHECK(equal.bubble_s / equal.makespan_s == Approx((P - 2.0) / (2 * M + P - 2)));
    Evaluation const twice = evaluated(t, Costs::uniform(1, 1, 1));
    CHECK(twice.bubble_s / twice.makespan_s == Approx((P - 2.0) / (1.5 * M + P - 2)));
  }
}

TEST_CASE("schedule/Chimera: at most P in flight on any rank, for any even M", "[schedule]") {
  each([](int P, int M) {
    if (P % 2 != 0 || M % 2 != 0) {
      REQUIRE_THROWS_AS(Chimera{}.table({P, M}), Error);
      return;
    }
    REQUIRE(highest(peak_in_flight(legal(Chimera{}, P, M))) <= P);
  });
}

}  // namespace chimera_test
