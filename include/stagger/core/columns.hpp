// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Values whose rows members of a group can divide into columns.

#include <algorithm>
#include <concepts>
#include <cstddef>

#include <stagger/core/add_up.hpp>
#include <stagger/core/index_range.hpp>
#include <stagger/core/rows.hpp>
#include <stagger/core/tensor.hpp>

namespace stagger {

/// A value of rows that are divided into columns, the features of a layer.
///  - `columns()`: how many each row has
///  - `resize_block(like, block)`: so many rows and columns of the kind that `like` has; what they
///    hold is unspecified. `like` is another value
///  - `copy_block(at, from, first, size)`: the block of another value that begins at row
///    `first.rows` and column `first.columns` becomes the one at `at` of this value
///  - `add_block(at, from, first, size)`: likewise is added to it, element by element
template <class T>
concept ColumnSplittable = RowSplittable<T> && requires(T& to, T const& from, Block block) {
  { from.columns() } -> std::convertible_to<std::size_t>;
  to.resize_block(from, block);
  to.copy_block(block, from, block, block);
  to.add_block(block, from, block, block);
};

namespace detail {

/// Columns of any type that has them.
template <class T> struct Columns {
  static constexpr bool exist = false;
};

template <ColumnSplittable T> struct Columns<T> {
  static constexpr bool exist = true;
  static std::size_t count(T const& value) { return value.columns(); }
  static void resize(T& to, T const& like, Block block) { to.resize_block(like, block); }
  static void copy(T& to, Block at, T const& from, Block first, Block size) {
    to.copy_block(at, from, first, size);
  }
  static void add(T& to, Block at, T const& from, Block first, Block size) {
    to.add_block(at, from, first, size);
  }
};

/// A tensor's columns are the elements of a row.
template <class U> struct Columns<Tensor<U>> {
  static constexpr bool exist = true;
  static std::size_t count(Tensor<U> const& value) {
    return value.rows() == 0 ? 0 : value.size() / value.rows();
  }
  static void resize(Tensor<U>& to, Tensor<U> const& like, Block block) {
    if (block.columns == count(like))
      to.resize_rows(like, block.rows);
    else
      to.resize({block.rows, block.columns});
  }
  static void copy(Tensor<U>& to, Block at, Tensor<U> const& from, Block first, Block size) {
    each_row(to, at, from, first, size,
             [](U* here, U const* there, std::size_t n) { std::copy_n(there, n, here); });
  }
  static void add(Tensor<U>& to, Block at, Tensor<U> const& from, Block first, Block size) {
    each_row(to, at, from, first, size,
             [](U* here, U const* there, std::size_t n) { add_up(here, &there, 1, n); });
  }

 private:
  /// Visits what is contiguous in both.
  template <class Visit>
  static void each_row(Tensor<U>& to, Block at, Tensor<U> const& from, Block first, Block size,
                       Visit visit) {
    std::size_t const here = count(to);
    std::size_t const there = count(from);
    if (size.columns == here && size.columns == there)
      return visit(to.data() + at.rows * here, from.data() + first.rows * there,
                   size.rows * size.columns);
    for (std::size_t r = 0; r < size.rows; ++r)
      visit(to.data() + (at.rows + r) * here + at.columns,
            from.data() + (first.rows + r) * there + first.columns, size.columns);
  }
};

}  // namespace detail
}  // namespace stagger
