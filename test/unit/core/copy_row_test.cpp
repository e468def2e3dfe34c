// SPDX-License-Identifier: Apache-2.0
#include <stagger/core/detail/copy_row.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "catch.hpp"

namespace copy_row_test {

namespace {

/// Copies so many elements that begin `off` elements behind the start of both vectors.
/// @returns how many elements are not as they should be then
template <class T> std::size_t wrong_after(bool past_caches, std::size_t size, std::size_t off) {
  std::vector<T> from(off + size), to(off + size + 1, T(1));
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<T>(i * 37 % 101 + 2);
  if (past_caches) {
    stagger::detail::copy_past_caches(to.data() + off, from.data() + off, size);
    stagger::detail::finish_past_caches();
  } else {
    stagger::detail::copy_row(to.data() + off, from.data() + off, size);
  }
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < to.size(); ++i)
    wrong += to[i] != (i < off || i == off + size ? T(1) : from[i]);
  return wrong;
}

}  // namespace

TEMPLATE_TEST_CASE("core/copy_row: copies a row of any length and place, and nothing beside it",
                   "[core]", float, double, std::uint8_t) {
  for (std::size_t size = 0; size < 1100; size += size < 520 ? 1 : 7)
    for (std::size_t const off : {0U, 1U, 4U, 16U})
      for (bool const past_caches : {false, true}) {
        CAPTURE(past_caches, size, off);
        REQUIRE(wrong_after<TestType>(past_caches, size, off) == 0);
      }
}

}  // namespace copy_row_test
