// SPDX-License-Identifier: Apache-2.0
#include <stagger/core/fixed_array.hpp>

#include "catch.hpp"

#include <cstdint>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>

namespace fixed_array_test {

using stagger::FixedArray;

namespace {
struct Numbered {
  static inline int made = 0;
  static inline int alive = 0;
  static inline int throws_at = -1;
  static inline int last_destroyed = -1;
  int number = made;
  Numbered() {
    if (made == throws_at) throw std::runtime_error("no more");
    ++made;
    ++alive;
  }
  Numbered(Numbered const&) = delete;
  Numbered& operator=(Numbered const&) = delete;
  ~Numbered() {
    last_destroyed = number;
    --alive;
  }
  static void reset(int at = -1) {
    made = alive = 0;
    throws_at = at;
    last_destroyed = -1;
  }
};
struct alignas(128) Wide {
  int value = 7;
};
}  // namespace

TEST_CASE("core/FixedArray: elements are made in order and destroyed in reverse", "[core]") {
  Numbered::reset();
  {
    FixedArray<Numbered> const items(3);
    REQUIRE(items.size() == 3);
    CHECK(Numbered::alive == 3);
    for (int i = 0; i < 3; ++i) CHECK(items[i].number == i);
  }
  CHECK(Numbered::alive == 0);
  CHECK(Numbered::last_destroyed == 0);
}

TEST_CASE("core/FixedArray: what was made before an element throws is destroyed", "[core]") {
  Numbered::reset(2);
  CHECK_THROWS_AS(FixedArray<Numbered>(5), std::runtime_error);
  CHECK(Numbered::made == 2);
  CHECK(Numbered::alive == 0);
}

TEST_CASE("core/FixedArray: numbers are zero, members are as their type says", "[core]") {
  for (std::uint32_t const number : FixedArray<std::uint32_t>(100)) CHECK(number == 0);
  FixedArray<Wide> const wide(3);
  for (Wide const& one : wide) {
    CHECK(one.value == 7);
    CHECK(reinterpret_cast<std::uintptr_t>(&one) % alignof(Wide) == 0);
  }
}

TEST_CASE("core/FixedArray: moves take the elements where they lie", "[core]") {
  Numbered::reset();
  FixedArray<Numbered> first(2);
  Numbered const* const at = first.data();
  FixedArray<Numbered> second(std::move(first));
  CHECK(first.size() == 0);  // NOLINT
  CHECK(second.data() == at);
  FixedArray<Numbered> third(4);
  third = std::move(second);
  CHECK(third.data() == at);
  CHECK(third.size() == 2);
  third = FixedArray<Numbered>();
  CHECK(FixedArray<std::string>(0).size() == 0);
}

TEST_CASE("core/FixedArray: a length that no memory holds is refused", "[core]") {
  CHECK_THROWS_AS(FixedArray<Wide>(std::size_t{1} << 60U), std::bad_array_new_length);
}

}  // namespace fixed_array_test
