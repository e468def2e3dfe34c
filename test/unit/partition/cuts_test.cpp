// SPDX-License-Identifier: Apache-2.0
#include <stagger/partition/even.hpp>

#include "catch.hpp"

#include <algorithm>
#include <vector>

#include <stagger/partition/cuts.hpp>

namespace cuts_test {

using stagger::Error;
using stagger::partition::Cuts;
using stagger::partition::Even;

TEST_CASE("partition/Even: stages differ by one layer at most, longer ones first", "[partition]") {
  for (int layers = 1; layers <= 30; ++layers) {
    for (int stages = 1; stages <= layers; ++stages) {
      CAPTURE(layers, stages);
      std::vector<int> bounds = Even{stages}.cuts(layers);
      REQUIRE(bounds.size() == static_cast<std::size_t>(stages) - 1);
      REQUIRE_NOTHROW(Cuts{bounds}.cuts(layers));
      bounds.insert(bounds.begin(), 0);
      bounds.push_back(layers);
      std::vector<int> lengths;
      for (std::size_t i = 1; i < bounds.size(); ++i) lengths.push_back(bounds[i] - bounds[i - 1]);
      REQUIRE(std::is_sorted(lengths.rbegin(), lengths.rend()));
      REQUIRE(lengths.front() - lengths.back() <= 1);
    }
    for (int const stages : {-1, 0, layers + 1}) CHECK_THROWS_AS(Even{stages}.cuts(layers), Error);
  }
}

TEST_CASE("partition/Cuts: every strictly rising choice is accepted as it is, every other refused",
          "[partition]") {
  int const layers = 4;
  for (int a = -1; a <= layers + 1; ++a) {
    CHECK((a >= 1 && a < layers) == [&] {
      try {
        return Cuts{{a}}.cuts(layers) == std::vector<int>{a};
      } catch (Error const&) {
        return false;
      }
    }());
    for (int b = -1; b <= layers + 1; ++b) {
      bool const legal = 1 <= a && a < b && b < layers;
      if (legal)
        CHECK(Cuts{{a, b}}.cuts(layers) == std::vector<int>{a, b});
      else
        CHECK_THROWS_WITH(
            (Cuts{{a, b}}.cuts(layers)),
            Catch::Contains(
                "does not fit: with 4 layers, cuts are numbers from 1 to 3, each greater"));
    }
  }
  CHECK(Cuts{}.cuts(1).empty());
  CHECK_THROWS_WITH(Cuts{{1}}.cuts(1), Catch::Contains("a model of 1 layer cannot be cut"));
}

}  // namespace cuts_test
