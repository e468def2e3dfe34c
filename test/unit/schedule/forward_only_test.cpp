// SPDX-License-Identifier: Apache-2.0
#include <stagger/schedule/forward_only.hpp>

#include "grid.hpp"

namespace forward_only_test {

using namespace grid;

TEST_CASE("schedule/ForwardOnly: legal on every mapping, nothing but forwards", "[schedule]") {
  each([](int P, int M) {
    for (int V = 1; V <= 4; ++V) {
      for (Mapping const mapping : {Mapping::looped, Mapping::zigzag}) {
        Table const t = legal(ForwardOnly{V, mapping}, P, M);
        REQUIRE(t.actions.size() == static_cast<std::size_t>(P * V * M));
        if (mapping == Mapping::looped && M >= P) REQUIRE(evaluated(t).bubble_s == P - 1);
        for (int s = 0; s < P * V; ++s) {
          int const rank = mapping == Mapping::zigzag && s / P % 2 == 1 ? P - 1 - s % P : s % P;
          auto const row = t.row(rank);
          REQUIRE(std::count_if(row.begin(), row.end(),
                                [s](Action const& a) { return a.stage == s; }) == M);
        }
      }
    }
    if (P % 2 == 0 && M % 2 == 0) {
      static_cast<void>(legal(ForwardOnly{1, Mapping::bidirectional}, P, M));
    } else {
      REQUIRE_THROWS_AS((ForwardOnly{1, Mapping::bidirectional}.table({P, M})), Error);
    }
  });
}

}  // namespace forward_only_test
