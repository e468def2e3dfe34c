// SPDX-License-Identifier: Apache-2.0
#include <stagger/schedule/zero_bubble_v.hpp>

#include "grid.hpp"

namespace zero_bubble_v_test {

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
  CHECK(ZeroBubbleV{}.table({3, 4, 2}) ==
        oracle::table("0F0,0F1,0F2,0F3,5F0,5I0,5W0,5F1,5I1,5W1,5F2,5I2,5W2,0I0,0W0,5F3,5I3,5W3,"
                      "0I1,0W1,0I2,0W2,0I3,0W3 / "
                      "1F0,1F1,1F2,4F0,1F3,4F1,4I0,4W0,4F2,4I1,4W1,1I0,1W0,4F3,4I2,4W2,1I1,1W1,"
                      "4I3,4W3,1I2,1I3,1W2,1W3 / "
                      "2F0,3F0,2F1,3F1,2F2,3F2,3I0,3W0,2F3,2I0,2W0,3F3,3I1,3W1,2I1,2W1,3I2,3W2,"
                      "2I2,3I3,2I3,2W2,3W3,2W3"));
}

TEST_CASE("schedule/ZeroBubbleV: no more microbatches than ranks end no later than in PyTorch",
          "[schedule]") {
  bool earlier = false;
  for (int P = 1; P <= 16; ++P) {
    Table const whole = ZeroBubbleV{}.table({P, 2 * P - 1, 2});
    for (int M = 1; M <= P; M += sanitized ? 5 : 1) {
      CAPTURE(P, M);
      Table there{.stages = 2 * P, .microbatches = M};  // 2P - 1 of them, the others left out
      for (int rank = 0; rank < P; ++rank) {
        there.begin_row();
        for (Action const action : whole.row(rank))
          if (action.microbatch < M) there.add(action);
      }
      Table const here = legal(ZeroBubbleV{}, P, M);
      for (Costs const& costs :
           {Costs::uniform(1, 1, 1), Costs::uniform(1, 1, 2), Costs::uniform(2, 1, 1),
            Costs::uniform(2, 3, 1, 1), Costs::uniform(1, 1, 1, 0.25)}) {
        double const ends = evaluated(here, costs).makespan_s;
        REQUIRE(ends <= evaluated(there, costs).makespan_s);
        earlier = earlier || ends < evaluated(there, costs).makespan_s;
      }
    }
  }
  CHECK(earlier);
  CHECK(evaluated(ZeroBubbleV{}.table({4, 2, 2})).makespan_s == 21);  // 22 there
  CHECK(evaluated(ZeroBubbleV{}.table({4, 4, 2})).makespan_s == 28);  // 30 there
  CHECK(evaluated(ZeroBubbleV{}.table({7, 7, 2})).makespan_s == 51);  // 54 there
}

}  // namespace zero_bubble_v_test
