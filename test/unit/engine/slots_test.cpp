// SPDX-License-Identifier: Apache-2.0
#include <stagger/engine/slots.hpp>

#include "catch.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <utility>

#include <stagger/core/tensor.hpp>

namespace slots_test {

namespace {

using namespace stagger;

int alive = 0;  // objects that exist
int most_alive = 0;
int throws_at = -1;  // which construction fails

struct Counted {
  Counted() {
    if (alive == throws_at) throw std::runtime_error("no more");
    most_alive = std::max(most_alive, ++alive);
  }
  Counted(Counted const& other) : held(other.held) { ++alive; }
  Counted& operator=(Counted const&) = default;
  ~Counted() { --alive; }
  [[nodiscard]] std::uint64_t bytes() const { return held; }
  std::uint64_t held = 0;
  char more[70] = {};
};

detail::SlotType const& counted_type = detail::slot_type<Counted>;

}  // namespace

TEST_CASE("engine/Slots: objects of a type lie apart, aligned, and live as long as the slots",
          "[engine]") {
  REQUIRE(alive == 0);
  {
    detail::Slots slots(counted_type, 3);
    CHECK(alive == 3);
    CHECK(counted_type.stride == 128);
    for (std::size_t s = 0; s < 3; ++s) {
      CHECK(reinterpret_cast<std::uintptr_t>(slots[s]) % alignment_bytes == 0);
      CHECK(static_cast<std::byte*>(slots[s]) ==
            static_cast<std::byte*>(slots[0]) + s * counted_type.stride);
      static_cast<Counted*>(slots[s])->held = 10 * (s + 1);
    }
    CHECK(slots.bytes() == 60);
    CHECK(slots.largest() == 30);
    detail::Slots moved(std::move(slots));
    CHECK(slots.count() == 0);
    CHECK(moved.count() == 3);
    CHECK(alive == 3);
    detail::Slots other(counted_type, 2);
    other = std::move(moved);  // whose own objects go
    CHECK(alive == 3);
    CHECK(other.bytes() == 60);
  }
  CHECK(alive == 0);
  CHECK(detail::Slots(counted_type, 0).bytes() == 0);
}

TEST_CASE("engine/Slots: provide makes new objects for more of them, or for another type",
          "[engine]") {
  REQUIRE(alive == 0);
  {
    detail::Slots slots;
    slots.provide(counted_type, 2);
    CHECK(alive == 2);
    static_cast<Counted*>(slots[1])->held = 7;
    slots.provide(counted_type, 1);
    CHECK(static_cast<Counted*>(slots[1])->held == 7);
    slots.provide(detail::slot_type<float>, 0);  // none is needed
    CHECK(alive == 2);
    slots.provide(detail::slot_type<float>, 2);
    CHECK(alive == 0);
    CHECK(slots.count() == 2);
    slots.provide(counted_type, 1);
    CHECK(alive == 1);
    slots.provide(counted_type, 3);
    CHECK(alive == 3);
  }
  CHECK(alive == 0);
}

TEST_CASE("engine/Slots: an object that cannot be made takes those before it along", "[engine]") {
  REQUIRE(alive == 0);
  throws_at = 2;
  most_alive = 0;
  CHECK_THROWS_AS(detail::Slots(counted_type, 5), std::runtime_error);
  throws_at = -1;
  CHECK(most_alive == 2);
  CHECK(alive == 0);
}

TEST_CASE("engine/SlotType: knows the rows of types that have them, and the bytes of all",
          "[engine]") {
  CHECK(counted_type.rows == nullptr);
  CHECK(counted_type.copy_rows == nullptr);
  detail::SlotType const& type = detail::slot_type<Tensor<>>;
  Tensor<> value{5, 2}, to;
  CHECK(type.rows(&value) == 5);
  CHECK(type.bytes(&value) == value.bytes());
  CHECK(detail::slot_type<int>.bytes(&value) == sizeof(int));
  for (std::size_t i = 0; i < value.size(); ++i) value[i] = static_cast<float>(i);
  type.resize_rows(&to, &value, 2);
  type.copy_rows(&to, 0, &value, 3, 2);
  CHECK(to.rows() == 2);
  CHECK(to[0] == 6);
  CHECK(to[3] == 9);
  type.assign(&to, &value);
  CHECK(to.rows() == 5);
}

}  // namespace slots_test
