// SPDX-License-Identifier: Apache-2.0
#include <stagger/core/rows.hpp>

#include "catch.hpp"

#include <vector>

namespace rows_test {

namespace {

using Vector = std::vector<int>;
using Rows = stagger::detail::Rows<Vector>;

}  // namespace

TEST_CASE("core/Rows: rows of a vector are copied from where they are to where they belong",
          "[core]") {
  Vector const from{10, 11, 12, 13};
  Vector to{1, 2, 3, 4, 5};
  Rows::copy(to, 0, from, 2, 2);  // from the middle to the beginning
  CHECK(to == Vector{12, 13, 3, 4, 5});
  Rows::copy(to, 3, from, 0, 2);  // from the beginning to the end
  CHECK(to == Vector{12, 13, 3, 10, 11});
  Rows::copy(to, 1, from, 1, 3);
  CHECK(to == Vector{12, 11, 12, 13, 11});
  Rows::copy(to, 5, from, 4, 0);  // none, behind the last
  CHECK(to == Vector{12, 11, 12, 13, 11});
}

TEST_CASE("core/Rows: a vector cut into shares and put together again is as before", "[core]") {
  Vector const whole{3, 1, 4, 1, 5, 9, 2};
  for (std::size_t cut = 0; cut <= whole.size(); ++cut) {
    Vector first, second, together;
    Rows::resize(first, whole, cut);
    Rows::resize(second, whole, Rows::count(whole) - cut);
    Rows::copy(first, 0, whole, 0, cut);
    Rows::copy(second, 0, whole, cut, whole.size() - cut);
    Rows::resize(together, whole, whole.size());
    Rows::copy(together, 0, first, 0, cut);
    Rows::copy(together, cut, second, 0, whole.size() - cut);
    CHECK(together == whole);
  }
}

}  // namespace rows_test
