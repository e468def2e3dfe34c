// SPDX-License-Identifier: Apache-2.0
#include <stagger/schedule/gpipe.hpp>

#include <stagger/schedule/proof/evaluate.hpp>

#include "catch.hpp"
#include "grid.hpp"
#include "oracle.hpp"

namespace gpipe_test {

using namespace stagger;
using namespace stagger::schedule;

TEST_CASE("schedule/GPipe: two ranks and four microbatches as published", "[schedule]") {
  CHECK(GPipe{}.table({2, 4}) ==
        oracle::table("0F0,0F1,0F2,0F3,,,,0B0,0B1,0B2,0B3 / ,1F0,1F1,1F2,1F3,1B0,1B1,1B2,1B3"));
}

TEST_CASE("schedule/GPipe: bubble (P-1)(F+B) and peak M on every rank", "[schedule]") {
  for (int P = 1; P <= 8; ++P) {
    for (int M = 1; M <= 32; ++M) {
      CAPTURE(P, M);
      Table const t = GPipe{}.table({P, M});
      REQUIRE_FALSE(grid::verified(t));
      Evaluation const e = grid::evaluated(t, Costs::uniform(3, 4, 2));
      REQUIRE(e.bubble_s == (P - 1) * 9.0);
      for (int const peak : e.peak_in_flight) REQUIRE(peak == M);
    }
  }
}

TEST_CASE("schedule/GPipe: a shape without ranks or microbatches or with two chunks is refused",
          "[schedule]") {
  CHECK_THROWS_AS(GPipe{}.table({0, 4}), Error);
  CHECK_THROWS_WITH(GPipe{}.table({2, 0}), Catch::Contains("0 microbatches") &&
                                               Catch::Contains("nearest legal value is 1"));
  CHECK_THROWS_WITH(GPipe{}.table({2, 4, 2}), Catch::Contains("2 chunks"));
  CHECK_THROWS_AS(GPipe{}.table({1 << 20, 1 << 20}), Error);
  CHECK_THROWS_WITH((GPipe{}.table({2, 2147483647})),
                    Catch::Contains("2147483647 microbatches") && Catch::Contains("268435455"));
  CHECK_THROWS_WITH((GPipe{}.table({2147483647, 1})), Catch::Contains("2147483647 ranks"));
}

}  // namespace gpipe_test
