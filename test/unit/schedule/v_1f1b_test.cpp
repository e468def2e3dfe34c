// SPDX-License-Identifier: Apache-2.0
#include <stagger/schedule/v_1f1b.hpp>

#include "grid.hpp"
#include "published.hpp"

namespace v_1f1b_test {

using namespace grid;

TEST_CASE("schedule/V1F1B: peak at most 2 ceil(3P/4) chunks at no more than 1F1B's bubble",
          "[schedule]") {
  each([](int P, int M) {
    REQUIRE(highest(peak_in_flight(legal(V1F1B{}, P, M))) <= 2 * ((3 * P + 3) / 4));
  });
  for (int P = 2; P <= 40; ++P) {
    Table const t = legal(V1F1B{}, P, 4 * P);
    REQUIRE(highest(peak_in_flight(t)) <= 2 * ((3 * P + 3) / 4));
    REQUIRE(evaluated(t).bubble_s <= 6.0 * (P - 1));
  }
}

TEST_CASE("schedule/V1F1B: never longer than the published generator's schedules", "[schedule]") {
  int const shorter = published::shorter_than(
      published::v_1f1b, V1F1B{}, [](int P, int M, double ours, double theirs) {
        FAIL_CHECK("P = " << P << ", M = " << M << ": " << ours << " instead of " << theirs);
      });
  CHECK(shorter == 0);
}

}  // namespace v_1f1b_test
