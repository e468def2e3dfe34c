// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <string_view>
#include <vector>

#include <stagger/core/catalog.hpp>

#include "catch.hpp"

namespace catalog_test {
namespace {

struct Red {
  static constexpr std::string_view name = "red";
};
struct Blue {
  std::string_view name;
  int depth;
};

constexpr stagger::Catalog colours{"colour", Red{}, Blue{"blue", 3}};
static_assert(colours.size == 2);
static_assert(colours.names() == std::array<std::string_view, 2>{"red", "blue"});
static_assert(colours.line<Blue>().depth == 3);
template <class L>
concept Listed = requires { colours.line<L>(); };
static_assert(Listed<Red> && !Listed<int>);

}  // namespace

TEST_CASE("core/Catalog: lines are visited in order, and one of them by its name", "[core]") {
  std::vector<std::string_view> visited;
  auto const visit = [&](auto const& line) { visited.push_back(line.name); };
  colours.for_each(visit);
  CHECK(visited == std::vector<std::string_view>{"red", "blue"});
  colours.visit("blue", visit);
  CHECK(visited.size() == 3);
  CHECK(visited.back() == "blue");
}

TEST_CASE("core/Catalog: an unknown name is refused with the nearest", "[core]") {
  int visits = 0;
  CHECK_THROWS_WITH(colours.visit("blu", [&](auto const&) { ++visits; }),
                    "there is no colour 'blu'; the nearest is 'blue'");
  CHECK_THROWS_WITH(colours.visit("", [&](auto const&) { ++visits; }),
                    Catch::Contains("there is no colour ''"));
  CHECK(visits == 0);
}

}  // namespace catalog_test
