// SPDX-License-Identifier: Apache-2.0
#include <stagger/placement/in_order.hpp>

#include "catch.hpp"

#include <algorithm>
#include <limits>
#include <vector>

#include <stagger/placement/explicit_map.hpp>

namespace explicit_map_test {

using stagger::placement::ExplicitMap;
using stagger::placement::InOrder;

TEST_CASE(
    "placement/InOrder: blocks of neighbours, every place used, lengths differ by one at most",
    "[placement]") {
  for (int ranks = 1; ranks <= 40; ++ranks) {
    for (int places = 1; places <= ranks; ++places) {
      CAPTURE(ranks, places);
      auto const place = InOrder{}.place(ranks, places);
      REQUIRE(place.size() == static_cast<std::size_t>(ranks));
      REQUIRE(std::is_sorted(place.begin(), place.end()));
      std::vector<int> held(static_cast<std::size_t>(places));
      for (int const p : place) ++held.at(static_cast<std::size_t>(p));
      auto const [least, most] = std::minmax_element(held.begin(), held.end());
      REQUIRE(*least >= 1);
      REQUIRE(*most - *least <= 1);
    }
  }
  CHECK(InOrder{}.place(100000, 100000).back() == 99999);
  CHECK(InOrder{}.place(2, std::numeric_limits<int>::max()).back() <
        std::numeric_limits<int>::max());
}

TEST_CASE("placement/ExplicitMap: answers what it was given", "[placement]") {
  CHECK(ExplicitMap{{2, 0, 2}}.place(3, 3) == std::vector<int>{2, 0, 2});
}

}  // namespace explicit_map_test
