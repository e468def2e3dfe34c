// SPDX-License-Identifier: Apache-2.0
#include <stagger/schedule/seq_1f1b.hpp>

#include "grid.hpp"

namespace seq_1f1b_test {

using namespace grid;

TEST_CASE("schedule/Seq1F1B: bubble (P-1)(F+B)/S and peak min(MS, P-r-1+S) slices", "[schedule]") {
  each([](int P, int M) {
    for (int S = 1; S <= 4; ++S) {
      if (M < P) {
        REQUIRE_THROWS_AS(Seq1F1B{S}.table({P, M}), Error);
        continue;
      }
      Evaluation const e = evaluated(legal(Seq1F1B{S}, P, M), Costs::uniform(12, 24, 12));
      REQUIRE(e.bubble_s == Approx((P - 1) * 48.0 / S));
      for (int r = 0; r < P; ++r) {
        REQUIRE(e.peak_in_flight[static_cast<std::size_t>(r)] == std::min(M * S, P - r - 1 + S));
      }
    }
  });
}

TEST_CASE("schedule/Seq1F1B: backwards take the slices of a microbatch from the last to the first",
          "[schedule]") {
  CHECK(write_csv(Seq1F1B{2}.table({1, 2})) == "0F0s0,0F0s1,0B0s1,0F1s0,0B0s0,0F1s1,0B1s1,0B1s0\n");
}

}  // namespace seq_1f1b_test
