// SPDX-License-Identifier: Apache-2.0
#include <stagger/schedule/v_half.hpp>

#include "grid.hpp"
#include "published.hpp"

namespace v_half_test {

using namespace grid;

TEST_CASE("schedule/VHalf: peak at most 2 ceil((P+1)/2) chunks at less than 1F1B's bubble",
          "[schedule]") {
  each([](int P, int M) {
    REQUIRE(highest(peak_in_flight(legal(VHalf{}, P, M))) <= 2 * ((P + 2) / 2));
  });
  for (int P = 2; P <= 40; ++P) {
    Table const t = legal(VHalf{}, P, 4 * P);
    REQUIRE(highest(peak_in_flight(t)) <= 2 * ((P + 2) / 2));
    REQUIRE(evaluated(t).bubble_s <= 3.0 * (P - 1));  // half of 6 (P - 1) units
  }
}

TEST_CASE("schedule/VHalf: never longer than the published generator's schedules", "[schedule]") {
  int const shorter = published::shorter_than(
      published::v_half, VHalf{}, [](int P, int M, double ours, double theirs) {
        FAIL_CHECK("P = " << P << ", M = " << M << ": " << ours << " instead of " << theirs);
      });
  CHECK(shorter > 20);
}

}  // namespace v_half_test
