// SPDX-License-Identifier: Apache-2.0
#include <stagger/placement/catalog.hpp>

#include <algorithm>
#include <cstddef>
#include <string>
#include <type_traits>
#include <vector>

#include "catch.hpp"

namespace catalog_test {

namespace placement = stagger::placement;
using placement::Allocation;
using placement::ParameterPlacement;

namespace {

/// Every line's name and type mean the same policy, and no other.
template <class Named, class... P>
void there_and_back(stagger::Catalog<placement::CatalogLine<P>...> const& lines) {
  auto const all = Named::all();
  REQUIRE(all.size() == sizeof...(P));
  REQUIRE(Named::names.size() == sizeof...(P));
  CHECK(Named{} == all.front());
  std::size_t i = 0;
  auto const check = [&]<class Q>(placement::CatalogLine<Q> const& line) {
    CAPTURE(line.name);
    Named const named(line.name);
    CHECK(named.name() == line.name);
    CHECK(named == Named(Q{}));
    CHECK(named == all[i]);
    CHECK(Named::names[i++] == line.name);
    CHECK(std::count(all.begin(), all.end(), named) == 1);
    CHECK(!line.what.empty());
    int calls = 0;
    named.visit([&](auto const& policy) {
      ++calls;
      CHECK(std::is_same_v<decltype(policy), Q const&>);
    });
    CHECK(calls == 1);
  };
  lines.for_each(check);
}

}  // namespace

TEST_CASE("placement/catalog: each name is the policy of its own type", "[placement]") {
  there_and_back<Allocation>(placement::allocation_lines);
  there_and_back<ParameterPlacement>(placement::parameter_placement_lines);
  STATIC_REQUIRE(!std::is_convertible_v<placement::Local, Allocation>);
}

TEST_CASE("placement/catalog: the error for an unknown name says the nearest", "[placement]") {
  CHECK_THROWS_WITH(Allocation("fair"), "there is no allocation 'fair'; the nearest is 'np'");
  CHECK_THROWS_WITH(ParameterPlacement("lokal"),
                    "there is no placement of parameters 'lokal'; the nearest is 'local'");
}

}  // namespace catalog_test
