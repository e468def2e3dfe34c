// SPDX-License-Identifier: Apache-2.0
#include <stagger/engine/row_splitter.hpp>

#include "catch.hpp"

#include <cstddef>
#include <vector>

#include <stagger/core/tensor.hpp>

namespace row_splitter_test {

namespace {

using namespace stagger;
using detail::RowRange;

detail::SlotType const& vectors = detail::slot_type<std::vector<int>>;
detail::SlotType const& tensors = detail::slot_type<Tensor<>>;

/// Rows `first`, `first + 1`, ...: `each` elements for each, which say whose they are.
std::vector<int> rows_of(RowRange rows, int each) {
  std::vector<int> value;
  for (std::size_t r = rows.first; r < rows.last; ++r)
    for (int e = 0; e < each; ++e) value.push_back(static_cast<int>(r) * 10 + e);
  return value;
}

}  // namespace

TEST_CASE("engine/RowRange: what two ranges have in common", "[engine]") {
  struct Case {
    RowRange a, b;
    std::size_t first, count;
  };
  for (Case const& one :
       {Case{{0, 4}, {2, 6}, 2, 2}, Case{{2, 6}, {0, 4}, 2, 2}, Case{{0, 8}, {3, 5}, 3, 2},
        Case{{1, 3}, {1, 3}, 1, 2}, Case{{0, 2}, {2, 4}, 2, 0}, Case{{4, 6}, {0, 2}, 4, 0}}) {
    RowRange const both = one.a.common(one.b);
    CAPTURE(one.a.first, one.a.last, one.b.first, one.b.last);
    CHECK(both.first == one.first);
    CHECK(both.count() == one.count);
  }
}

TEST_CASE("engine/rows_for_each: a whole number, or 0", "[engine]") {
  std::vector<int> const six(6), none;
  CHECK(detail::rows_for_each(vectors, &six, 6) == 1);
  CHECK(detail::rows_for_each(vectors, &six, 2) == 3);
  CHECK(detail::rows_for_each(vectors, &six, 4) == 0);
  CHECK(detail::rows_for_each(vectors, &six, 12) == 0);
  CHECK(detail::rows_for_each(vectors, &none, 3) == 0);
}

TEST_CASE("engine/RowSplitter: rows that are taken come back to their place", "[engine]") {
  for (int const each : {1, 3})
    for (std::size_t begin = 4; begin < 9; ++begin)
      for (std::size_t end = begin; end <= 9; ++end) {
        CAPTURE(each, begin, end);
        RowRange const rows{4, 9}, taken{begin, end};
        auto const value = rows_of(rows, each);
        detail::RowSplitter splitter;
        auto const* const part =
            static_cast<std::vector<int> const*>(splitter.split(vectors, &value, rows, taken));
        bool const all_or_none = taken.count() == 0 || taken.count() == rows.count();
        REQUIRE((part == nullptr) == all_or_none);
        if (part == nullptr) continue;
        CHECK(*part == rows_of(taken, each));
        std::vector<int> back;
        splitter.put_back(vectors, &back, rows, taken, part);
        REQUIRE(back.size() == value.size());
        for (std::size_t i = 0; i < part->size(); ++i) {
          std::size_t const at = (begin - rows.first) * static_cast<std::size_t>(each) + i;
          CHECK(back[at] == value[at]);
        }
      }
}

TEST_CASE("engine/RowSplitter: a value that goes with no row goes whole", "[engine]") {
  detail::RowSplitter splitter;
  std::vector<int> const value(7), none;
  CHECK(splitter.split(vectors, &value, {0, 5}, {1, 2}) == nullptr);
  CHECK(splitter.split(vectors, &none, {0, 5}, {1, 2}) == nullptr);
}

TEST_CASE("engine/RowSplitter: one object for each type, of the shape of the rows taken last",
          "[engine]") {
  detail::RowSplitter splitter;
  CHECK(splitter.object(vectors) == splitter.object(vectors));
  CHECK(splitter.object(vectors) != splitter.object(tensors));
  Tensor<> value{4, 3};
  for (std::size_t i = 0; i < value.size(); ++i) value[i] = static_cast<float>(i);
  auto const* const part =
      static_cast<Tensor<> const*>(splitter.split(tensors, &value, {2, 6}, {3, 5}));
  REQUIRE(part == splitter.object(tensors));
  CHECK(part->extent(0) == 2);
  CHECK(part->extent(1) == 3);
  CHECK((*part)[0] == 3);
  CHECK((*part)[5] == 8);
}

}  // namespace row_splitter_test
