// SPDX-License-Identifier: Apache-2.0
#include <stagger/schedule/v_min.hpp>

#include "grid.hpp"
#include "published.hpp"

namespace v_min_test {

using namespace grid;

TEST_CASE("schedule/VMin: peak at most 2(floor((P+1)/3)+1) chunks", "[schedule]") {
  each([](int P, int M) {
    REQUIRE(highest(peak_in_flight(legal(VMin{}, P, M))) <= 2 * ((P + 1) / 3 + 1));
  });
  for (int P = 9; P <= 40; ++P)
    REQUIRE(highest(peak_in_flight(legal(VMin{}, P, 3 * P))) <= 2 * ((P + 1) / 3 + 1));
}

TEST_CASE("schedule/VMin: never longer than the published generator's schedules", "[schedule]") {
  int const shorter = published::shorter_than(
      published::v_min, VMin{}, [](int P, int M, double ours, double theirs) {
        FAIL_CHECK("P = " << P << ", M = " << M << ": " << ours << " instead of " << theirs);
      });
  CHECK(shorter > 20);
}

}  // namespace v_min_test
