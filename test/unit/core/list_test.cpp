// SPDX-License-Identifier: Apache-2.0
#include <stagger/core/list.hpp>

#include "catch.hpp"

#include <string>

using stagger::List;

TEST_CASE("core/List: lists are equal when they hold the same elements and no more", "[core]") {
  List<int> const two{1, 2};
  CHECK(two == List<int>{1, 2});
  CHECK_FALSE(two == List<int>{1, 3});
  CHECK_FALSE(two == List<int>{1, 2, 3});  // the shorter one is a beginning of the longer one
  CHECK_FALSE(List<int>{} == two);
  CHECK(List<int>{} == List<int>{});
  List<std::string> const words{"a", "b"};
  CHECK(words == List<std::string>{"a", "b"});
  CHECK_FALSE(words == List<std::string>{"a", "b", "c"});
}
