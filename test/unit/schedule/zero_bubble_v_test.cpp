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
    Evaluation const e = evaluated(t);
    REQUIRE(e.span_bubble_s == 0);
    REQUIRE(e.bubble_s == P - 1);
    for (int const peak : e.peak_in_flight) REQUIRE(peak == 2 * P);
  });
}

TEST_CASE("schedule/ZeroBubbleV: the bubble is not zero at unequal costs", "[schedule]") {
  CHECK(evaluated(ZeroBubbleV{}.table({4, 16, 2}), Costs::uniform(2, 3, 1)).span_bubble_s ==
        12);  // as measured elsewhere
}

TEST_CASE("schedule/ZeroBubbleV: rows that PyTorch 2.15 makes", "[schedule]") {
  CHECK(ZeroBubbleV{}.table({2, 3, 2}) ==
        oracle::table("0F0,0F1,0F2,3F0,3I0,3W0,3F1,3I1,3W1,0I0,0W0,3F2,3I2,3W2,0I1,0W1,0I2,0W2 / "
                      "1F0,2F0,1F1,2F1,2I0,2W0,1F2,1I0,1W0,2F2,2I1,2W1,1I1,2I2,1I2,1W1,2W2,1W2"));
  CHECK(ZeroBubbleV{}.table({4, 2, 2}) ==
        oracle::table("0F0,0F1,7F0,7I0,7W0,7F1,7I1,7W1,0I0,0W0,0I1,0W1 / "
                      "1F0,1F1,6F0,6F1,6I0,6W0,6I1,6W1,1I0,1W0,1I1,1W1 / "
                      "2F0,2F1,5F0,5F1,5I0,5W0,5I1,5W1,2I0,2W0,2I1,2W1 / "
                      "3F0,4F0,3F1,4F1,4I0,4W0,3I0,3W0,4I1,4W1,3I1,3W1"));
}
