// SPDX-License-Identifier: Apache-2.0
#include <stagger/schedule/v_half.hpp>

#include <cstddef>
#include <vector>

#include "grid.hpp"

using namespace grid;

TEST_CASE("schedule/VHalf: peak at most 2 ceil((P+1)/2) chunks at less than 1F1B's bubble",
          "[schedule]") {
  each([](int P, int M) {
    REQUIRE(highest(peak_in_flight(legal(VHalf{}, P, M))) <= 2 * ((P + 2) / 2));
  });
  for (int P = 2; P <= 40; ++P) {
    Table const t = legal(VHalf{}, P, 4 * P);
    REQUIRE(highest(peak_in_flight(t)) <= 2 * ((P + 2) / 2));
    REQUIRE(evaluate(t).bubble_s <= 3.0 * (P - 1));  // half of 6 (P - 1) units
  }
}

TEST_CASE("schedule/VHalf: never longer than the published generator's schedules", "[schedule]") {
  // Makespans at unit costs for P = 2 to 10, as the authors' generator lays them with reordering.
  std::vector<double> const at_P{15, 23, 34, 44, 48, 66, 65, 82, 83};
  std::vector<double> const at_2P{25, 41, 53, 71, 83, 101, 113, 131, 143};
  for (int P = 2; P <= 10; ++P) {
    CAPTURE(P);
    auto const i = static_cast<std::size_t>(P - 2);
    CHECK(evaluate(VHalf{}.table({P, P, 2})).makespan_s <= at_P[i]);
    CHECK(evaluate(VHalf{}.table({P, 2 * P, 2})).makespan_s <= at_2P[i]);
    CHECK(evaluate(VHalf{}.table({P, 6 * P, 2})).makespan_s <= at_2P[i] + 6.0 * 4 * P);
  }
}
