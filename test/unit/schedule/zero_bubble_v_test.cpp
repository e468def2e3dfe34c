// SPDX-License-Identifier: Apache-2.0
#include <stagger/schedule/zero_bubble_v.hpp>

#include "grid.hpp"

using namespace grid;

TEST_CASE(
    "schedule/ZeroBubbleV: no span bubble, bubble (P-1)F, peak 2P chunks from M = 2P-1 on at equal "
    "costs",
    "[schedule]") {
  each([](int P, int M) {
    Table const t = legal(ZeroBubbleV{}, P, M);
    REQUIRE(highest(peak_in_flight(t)) <= 2 * P);
    if (M < 2 * P - 1) return;
    Evaluation const e = evaluate(t);
    REQUIRE(e.span_bubble_s == 0);
    REQUIRE(e.bubble_s == P - 1);
    for (int const peak : e.peak_in_flight) REQUIRE(peak == 2 * P);
  });
}

TEST_CASE("schedule/ZeroBubbleV: the bubble is not zero at unequal costs", "[schedule]") {
  CHECK(evaluate(ZeroBubbleV{}.table({4, 16, 2}), Costs::uniform(2, 3, 1)).span_bubble_s ==
        12);  // as measured elsewhere
}
