// SPDX-License-Identifier: Apache-2.0
#include <stagger/schedule/dual_pipe.hpp>

#include "grid.hpp"

namespace dual_pipe_test {

using namespace grid;

TEST_CASE("schedule/DualPipe: two ranks and four microbatches as published", "[schedule]") {
  CHECK(DualPipe{}.table({2, 4}) ==
        oracle::table("0F0,1F2,0F1,1B2,(1F3;0B0)OVERLAP_F_B,1B3,0I1,0W1 / "
                      "0F2,1F0,0F3,1B0,(1F1;0B2)OVERLAP_F_B,1B1,0I3,0W3"));
}

TEST_CASE("schedule/DualPipe: bubble (P/2-1)(F&B+B-3W) and peak P+1 at equal costs", "[schedule]") {
  each([](int P, int M) {
    if (P % 2 != 0 || M % 2 != 0 || M < 2 * P) {
      REQUIRE_THROWS_AS(DualPipe{}.table({P, M}), Error);
      return;
    }
    Evaluation const e = evaluated(legal(DualPipe{}, P, M), Costs::uniform(2, 2, 2));
    REQUIRE(e.bubble_s == (P / 2 - 1) * (6.0 + 4.0 - 6.0));
    for (int const peak : e.peak_in_flight) REQUIRE(peak == P + 1);
  });
}

TEST_CASE("schedule/DualPipe: an illegal count is refused with the nearest legal one",
          "[schedule]") {
  CHECK_THROWS_WITH(DualPipe{}.table({3, 12}),
                    Catch::Contains("3 ranks") && Catch::Contains("nearest legal value is 4"));
  CHECK_THROWS_WITH(DualPipe{}.table({4, 7}), Catch::Contains("7 microbatches") &&
                                                  Catch::Contains("nearest legal value is 8"));
  CHECK_THROWS_WITH(DualPipe{}.table({4, 9}), Catch::Contains("9 microbatches") &&
                                                  Catch::Contains("nearest legal value is 10"));
}

}  // namespace dual_pipe_test
