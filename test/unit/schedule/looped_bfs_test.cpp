// SPDX-License-Identifier: Apache-2.0
#include <stagger/schedule/looped_bfs.hpp>

#include "grid.hpp"

namespace looped_bfs_test {

using namespace grid;

TEST_CASE("schedule/LoopedBfs: two ranks and two microbatches as published", "[schedule]") {
  CHECK(LoopedBfs{}.table({2, 2, 2}) ==
        oracle::table("0F0,0F1,2F0,2F1,,,2B1,2B0,0B1,0B0 / ,1F0,1F1,3F0,3F1,3B1,3B0,1B1,1B0"));
}

TEST_CASE("schedule/LoopedBfs: bubble (P-1)(F+B) of one chunk from M = P on, peak VM",
          "[schedule]") {
  each([](int P, int M) {
    for (int V = 1; V <= 4; ++V) {
      Evaluation const e = evaluated(legal(LoopedBfs{V}, P, M), Costs::uniform(3, 4, 2));
      if (M >= P) REQUIRE(e.bubble_s == (P - 1) * 9.0);
      for (int const peak : e.peak_in_flight) REQUIRE(peak == V * M);
    }
  });
}

TEST_CASE("schedule/LoopedBfs: rows that PyTorch 2.15 makes", "[schedule]") {
  CHECK(LoopedBfs{2}.table({3, 2, 2}) == oracle::table("0F0,0F1,3F0,3F1,3B1,3B0,0B1,0B0 / "
                                                       "1F0,1F1,4F0,4F1,4B1,4B0,1B1,1B0 / "
                                                       "2F0,2F1,5F0,5F1,5B1,5B0,2B1,2B0"));
  CHECK(LoopedBfs{3}.table({2, 2, 3}) ==
        oracle::table("0F0,0F1,2F0,2F1,4F0,4F1,4B1,4B0,2B1,2B0,0B1,0B0 / "
                      "1F0,1F1,3F0,3F1,5F0,5F1,5B1,5B0,3B1,3B0,1B1,1B0"));
}

}  // namespace looped_bfs_test
