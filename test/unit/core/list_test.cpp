// SPDX-License-Identifier: Apache-2.0
#include <stagger/core/list.hpp>

#include "catch.hpp"

#include <new>
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

namespace {
struct Counted {
  static inline int alive = 0;
  static inline int left = 0;  // copies until one throws
  Counted() { ++alive; }
  Counted(Counted const&) {
    if (left-- == 0) throw std::bad_alloc();
    ++alive;
  }
  Counted(Counted&&) noexcept { ++alive; }
  ~Counted() { --alive; }
};
}  // namespace

TEST_CASE("core/List: a copy that throws half way destroys what it has copied", "[core]") {
  {
    List<Counted> const three(3);
    for (int at = 0; at < 3; ++at) {
      Counted::left = at;
      CHECK_THROWS_AS(List<Counted>(three), std::bad_alloc);
      CHECK(Counted::alive == 3);
    }
  }
  CHECK(Counted::alive == 0);
}
