// SPDX-License-Identifier: Apache-2.0
#include <stagger/core/grid.hpp>

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"

namespace grid_test {

namespace {

using stagger::Grid;

constexpr int sum_of_rows() {
  Grid<int> grid(2, 3, 1);
  grid(1, std::size_t{2}) = 10;
  Grid<int> copy = grid;
  copy(0, 0) = 100;  // of the copy alone
  int sum = 0;
  for (int const value : grid) sum += value;
  return sum * 1000 + copy[0] + copy[5U];
}
static_assert(sum_of_rows() == 15 * 1000 + 110);

TEST_CASE("core/Grid: a row lies behind the other", "[core]") {
  Grid<int> grid(3, 4, -1);
  grid(2, 1) = 7;
  CHECK(grid.size() == 12);
  CHECK(grid[2 * 4 + 1] == 7);
  CHECK(grid(2, 0) == -1);
  CHECK(grid.end() - grid.begin() == 12);
}

TEST_CASE("core/Grid: one value for each of a number", "[core]") {
  Grid<std::vector<int>> rows(2);
  rows[1].push_back(3);
  CHECK(rows[0].empty());
  Grid<double> const zeros(3);
  CHECK(zeros == Grid<double>(3, 0.0));
  CHECK_FALSE(zeros == Grid<double>(4, 0.0));
  CHECK(Grid<int>{}.empty());
}

TEST_CASE("core/Grid: copies own their elements, moves take them", "[core]") {
  Grid<std::string> first(2, "a text that is too long for a small buffer");
  Grid<std::string> second = first;
  second[0] = "other";
  CHECK(first[0] == first[1]);
  Grid<std::string> third = std::move(second);
  CHECK(third[0] == "other");
  first = third;
  CHECK(first == third);
  first = Grid<std::string>(1, "b");
  CHECK(first.size() == 1);
  CHECK(third.size() == 2);
}

/// Counts its instances and throws while a copy is made that is one too many.
struct Counted {
  static inline int alive = 0, copies_left = 0;
  Counted() { ++alive; }
  Counted(Counted const&) { ++alive; }
  Counted& operator=(Counted const&) {
    if (copies_left-- == 0) throw 1;
    return *this;
  }
  ~Counted() { --alive; }
};

TEST_CASE("core/Grid: a copy that throws leaves nothing behind", "[core]") {
  {
    Counted const value;
    Counted::copies_left = 2;
    CHECK_THROWS_AS(Grid<Counted>(3, value), int);
    CHECK(Counted::alive == 1);
    Counted::copies_left = 5;
    Grid<Counted> const three(3, value);
    CHECK_THROWS_AS(Grid<Counted>(three), int);
    CHECK(Counted::alive == 4);
  }
  CHECK(Counted::alive == 0);
}

}  // namespace

}  // namespace grid_test
