// SPDX-License-Identifier: Apache-2.0
#include <stagger/core/list.hpp>

#include "catch.hpp"

#include <new>
#include <string>

namespace list_test {

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

TEST_CASE("core/List: an element of a list can be appended to it, also when it must grow",
          "[core]") {
  List<int> numbers{1, 2};
  List<std::string> words{"a", "b"};
  for (int more = 0; more < 6; ++more) {
    numbers.push_back(numbers[1]);
    words.push_back(words[1]);
  }
  CHECK(numbers == List<int>{1, 2, 2, 2, 2, 2, 2, 2});
  CHECK(words == List<std::string>{"a", "b", "b", "b", "b", "b", "b", "b"});
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

}  // namespace list_test
