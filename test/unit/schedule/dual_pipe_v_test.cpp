// SPDX-License-Identifier: Apache-2.0
#include <stagger/schedule/dual_pipe_v.hpp>

#include "grid.hpp"

namespace dual_pipe_v_test {

using namespace grid;

TEST_CASE("schedule/DualPipeV: two ranks and four microbatches as published", "[schedule]") {
  CHECK(DualPipeV{}.table({2, 4, 2}) ==
        oracle::table("0F0,0F1,0F2,3F0,3I0,3W0,3F1,(0F3;3B1)OVERLAP_F_B,(3F2;0B0)OVERLAP_F_B,3B2,("
                      "3F3;0B1)OVERLAP_F_B,3B3,0I2,0W2,"
                      "0I3,0W3 / "
                      "1F0,2F0,1F1,2F1,1F2,2B0,(2F2;1B0)OVERLAP_F_B,(1F3;2B1)OVERLAP_F_B,(2F3;1B1)"
                      "OVERLAP_F_B,2B2,1B2,"
                      "2I3,1I3,2W3,1W3"));
}

TEST_CASE("schedule/DualPipeV: bubble (P-1)(F&B+B-3W) and peak 2P+1 chunks at equal costs",
          "[schedule]") {
  each([](int P, int M) {
    if (M < 2 * P) {
      REQUIRE_THROWS_AS(DualPipeV{}.table({P, M, 2}), Error);
      return;
    }
    Evaluation const e = evaluated(legal(DualPipeV{}, P, M), Costs::uniform(2, 2, 2));
    REQUIRE(e.bubble_s == (P - 1) * (6.0 + 4.0 - 6.0));
    REQUIRE(highest(e.peak_in_flight) == 2 * P + 1);
  });
}

TEST_CASE("schedule/DualPipeV: four ranks at F, I, W = 2, 3, 1 as measured elsewhere",
          "[schedule]") {
  CHECK(evaluated(DualPipeV{}.table({4, 16, 2}), Costs::uniform(2, 3, 1)).bubble_s == 19);
}

TEST_CASE("schedule/DualPipeV: rows that PyTorch 2.15 makes", "[schedule]") {
  CHECK(DualPipeV{}.table({2, 5, 2}) ==
        oracle::table("0F0,0F1,0F2,3F0,3I0,3W0,3F1,(0F3;3B1)OVERLAP_F_B,(3F2;0B0)OVERLAP_F_B,"
                      "(0F4;3B2)OVERLAP_F_B,(3F3;0B1)OVERLAP_F_B,3B3,(3F4;0B2)OVERLAP_F_B,3B4,0I3,"
                      "0W3,0I4,0W4 / "
                      "1F0,2F0,1F1,2F1,1F2,2B0,(2F2;1B0)OVERLAP_F_B,(1F3;2B1)OVERLAP_F_B,"
                      "(2F3;1B1)OVERLAP_F_B,(1F4;2B2)OVERLAP_F_B,(2F4;1B2)OVERLAP_F_B,2B3,1B3,2I4,"
                      "1I4,2W4,1W4"));
}

}  // namespace dual_pipe_v_test
