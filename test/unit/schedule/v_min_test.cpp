// SPDX-License-Identifier: Apache-2.0
#include <stagger/schedule/v_min.hpp>

#include "grid.hpp"

using namespace grid;

TEST_CASE("schedule/VMin: peak at most 2(floor((P+1)/3)+1) chunks, and the published bubbles",
          "[schedule]") {
  each([](int P, int M) {
    REQUIRE(highest(peak_in_flight(legal(VMin{}, P, M))) <= 2 * ((P + 1) / 3 + 1));
  });
  for (int P = 9; P <= 40; ++P)
    REQUIRE(highest(peak_in_flight(legal(VMin{}, P, 3 * P))) <= 2 * ((P + 1) / 3 + 1));
  CHECK(evaluate(VMin{}.table({4, 16, 2})).bubble_s == 11);
  CHECK(evaluate(VMin{}.table({8, 32, 2})).bubble_s == 27);
}
