// SPDX-License-Identifier: Apache-2.0
#include <stagger/core/add_up.hpp>

#include <cstddef>
#include <vector>

#include "catch.hpp"

namespace add_up_test {

namespace {

/// Adds up terms of so many elements that begin `off` elements behind the start of their vectors.
template <class T> void check_terms(std::size_t count, std::size_t size, std::size_t off) {
  CAPTURE(count, size, off);
  std::vector<std::vector<T>> values(count, std::vector<T>(off + size));
  std::vector<T const*> terms;
  for (std::size_t m = 0; m < count; ++m) {
    for (std::size_t i = 0; i < size; ++i)
      values[m][off + i] = T(1) / static_cast<T>(1 + (i * 7 + m * 13) % 97);
    terms.push_back(values[m].data() + off);
  }
  std::vector<T> sum(off + size + 1, T(-1));
  stagger::detail::add_terms(sum.data() + off, terms.data(), count, size);
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < size; ++i) {
    T expected = values[0][off + i];
    for (std::size_t m = 1; m < count; ++m) expected += values[m][off + i];
    if (sum[off + i] != expected) ++wrong;
  }
  CHECK(wrong == 0);
  for (std::size_t i = 0; i < off; ++i) CHECK(sum[i] == T(-1));
  CHECK(sum[off + size] == T(-1));
}

}  // namespace

TEMPLATE_TEST_CASE("core/add_terms: adds from the left, and writes nothing else", "[core]", float,
                   double, int) {
  std::size_t const mebibyte = (1U << 20) / sizeof(TestType);
  std::size_t const size = GENERATE_COPY(std::size_t{0}, 1U, 255U, 256U, 257U, 5000U, mebibyte - 1,
                                         mebibyte, mebibyte + 19);
  std::size_t const off = GENERATE(std::size_t{0}, 1U, 3U);
  for (std::size_t count = 2; count <= 4; ++count) check_terms<TestType>(count, size, off);
}

}  // namespace add_up_test
