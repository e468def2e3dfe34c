// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Values whose columns can be divided among the members of a group.

#include <array>
#include <concepts>
#include <cstddef>
#include <type_traits>

#include <stagger/core/add_up.hpp>
#include <stagger/core/basic_algorithm.hpp>
#include <stagger/core/detail/copy_row.hpp>
#include <stagger/core/index_range.hpp>
#include <stagger/core/rows.hpp>
#include <stagger/core/tensor.hpp>

namespace stagger {

/// A value whose rows consist of columns, the features of a layer.
///  - `columns()`: how many each row has
///  - `resize_block(like, block)`: gives this value the block's rows and columns, of the same
///    kind as those of another value `like`; their contents are unspecified
///  - `copy_block(at, from, first, size)`: copies to `at` the block of another value that begins at
///    row `first.rows` and column `first.columns`
///  - `add_block(at, from, first, size)`: likewise, but adds it element by element
///
/// Where stages enqueue their work, both enqueue it, too, on the stream of the rank for which they are
/// called, and the type says `static constexpr bool columns_on_stream = true`.
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

template <class T> constexpr bool columns_are_on_stream() {
  static_assert(
      !requires { &T::columns_on_stream; } ||
          requires { typename std::bool_constant<T::columns_on_stream>; },
      "stagger: 'columns_on_stream' of an activation must be 'static constexpr bool "
      "columns_on_stream', true if copy_block and add_block enqueue their work");
  if constexpr (requires { T::columns_on_stream; }) return T::columns_on_stream;
  return false;
}

template <ColumnSplittable T> struct Columns<T> {
  static constexpr bool exist = true;
  static constexpr bool on_stream = columns_are_on_stream<T>();
  static std::size_t count(T const& value) { return value.columns(); }
  static void resize(T& to, T const& like, Block block) { to.resize_block(like, block); }
  static void copy(T& to, Block at, T const& from, Block first, Block size) {
    to.copy_block(at, from, first, size);
  }
  /// Takes this many rows of each source, in order, so few at a time that they stay in a cache
  /// until all sources have been there. What is enqueued is enqueued at once.
  static void take(T& to, std::size_t at, std::size_t rows, BlockSource const* sources,
                   std::size_t count) {
    constexpr std::size_t few = on_stream ? ~std::size_t{0} : 16;
    for (std::size_t r = 0; r < rows; r += std::min(few, rows - r))
      for (std::size_t s = 0; s < count; ++s) {
        auto const& [from, first, column, columns, adds] = sources[s];
        Block const here{at + r, column};
        Block const there{first.rows + r, first.columns};
        Block const size{std::min(few, rows - r), columns};
        if (adds)
          to.add_block(here, *static_cast<T const*>(from), there, size);
        else
          to.copy_block(here, *static_cast<T const*>(from), there, size);
      }
  }
};

/// A tensor's columns are the elements of a row.
template <class U> struct Columns<Tensor<U>> {
  static constexpr bool exist = true;
  static constexpr bool on_stream = false;
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
    BlockSource const source{&from, first, at.columns, size.columns, false};
    take(to, at.rows, size.rows, &source, 1);
  }
  /// Takes this many rows of each source, in order: row by row, so that memory is written from its
  /// beginning to its end, and terms are read and their sum written in one go.
  /// @pre count <= BlockSource::most
  static void take(Tensor<U>& to, std::size_t at, std::size_t rows, BlockSource const* sources,
                   std::size_t count) {
    struct Rows {
      U const* first;
      std::size_t stride;
    };
    std::array<Rows, BlockSource::most> from;
    std::size_t const stride = Columns::count(to);
    bool contiguous = true;  // all count as one row then
    for (std::size_t s = 0; s < count; ++s) {
      auto const& value = *static_cast<Tensor<U> const*>(sources[s].from);
      std::size_t const theirs = Columns::count(value);
      from[s] = {value.data() + sources[s].first.rows * theirs + sources[s].first.columns, theirs};
      contiguous = contiguous && sources[s].columns == stride && theirs == stride;
    }
    bool const large = rows * stride * sizeof(U) >= (4U << 20);  // for the caches
    std::size_t const at_once = contiguous ? rows : 1;
    for (std::size_t r = 0; r < rows; r += at_once)
      for (std::size_t s = 0; s < count;) {
        BlockSource const& source = sources[s];
        std::array<U const*, BlockSource::most> terms;
        std::size_t n = 0;
        do {
          terms[n++] = from[s].first + r * from[s].stride;
          ++s;
        } while (s < count && sources[s].adds && sources[s].column == source.column &&
                 sources[s].columns == source.columns);
        U* const sum = to.data() + (at + r) * stride + source.column;
        std::size_t const size = at_once * source.columns;
        if (source.adds)
          add_up(sum, terms.data(), n, size);
        else if (n != 1)
          add_terms(sum, terms.data(), n, size);
        else if (large)
          copy_past_caches(sum, terms[0], size);
        else
          copy_row(sum, terms[0], size);
      }
    if (large) finish_past_caches();
  }
};

}  // namespace detail
}  // namespace stagger
