// SPDX-License-Identifier: Apache-2.0
#include <stagger/schedule/v_min.hpp>

#include <cstddef>
#include <vector>

#include "grid.hpp"

using namespace grid;

TEST_CASE("schedule/VMin: peak at most 2(floor((P+1)/3)+1) chunks", "[schedule]") {
  each([](int P, int M) {
    REQUIRE(highest(peak_in_flight(legal(VMin{}, P, M))) <= 2 * ((P + 1) / 3 + 1));
  });
  for (int P = 9; P <= 40; ++P)
    REQUIRE(highest(peak_in_flight(legal(VMin{}, P, 3 * P))) <= 2 * ((P + 1) / 3 + 1));
}

TEST_CASE("schedule/VMin: as long as the published generator's schedules, to 2 % where 3 divides P",
          "[schedule]") {
  // Makespans at unit costs for P = 2 to 10, as the authors' generator lays them with reordering.
  std::vector<double> const at_P{15, 26, 35, 45, 53, 65, 75, 83, 95};
  std::vector<double> const at_2P{27, 41, 59, 75, 89, 107, 123, 137, 155};
  for (int P = 2; P <= 10; ++P) {
    CAPTURE(P);
    auto const i = static_cast<std::size_t>(P - 2);
    double const rest = P % 3 == 0 ? P / 3 - 1 : 0;
    CHECK(evaluate(VMin{}.table({P, P, 2})).makespan_s <= at_P[i] + rest);
    CHECK(evaluate(VMin{}.table({P, 2 * P, 2})).makespan_s <= at_2P[i] + rest);
    CHECK(evaluate(VMin{}.table({P, 6 * P, 2})).makespan_s <= at_2P[i] + rest + 6.0 * 4 * P);
  }
}
