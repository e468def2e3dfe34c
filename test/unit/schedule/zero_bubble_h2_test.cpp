// SPDX-License-Identifier: Apache-2.0
#include <stagger/schedule/zero_bubble_h2.hpp>

#include "grid.hpp"

namespace zero_bubble_h2_test {

using namespace grid;

TEST_CASE("schedule/ZeroBubbleH2: no span bubble from M = 2P-1 on at equal costs", "[schedule]") {
  each([](int P, int M) {
    Table const t = legal(ZeroBubbleH2{}, P, M);
    for (int r = 0; r < P; ++r) {
      auto const row = t.row(r);
      auto const first = std::find_if(
          row.begin(), row.end(), [](Action const& a) { return a.kind == Kind::backward_input; });
      REQUIRE(first - row.begin() <= 2 * P - 1);
    }
    if (M < 2 * P - 1) return;
    Evaluation const e = evaluated(t);
    REQUIRE(e.span_bubble_s == 0);
    REQUIRE(e.bubble_s == P - 1);
  });
}

}  // namespace zero_bubble_h2_test
