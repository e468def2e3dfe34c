// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Values that replicas of a stage can split by rows.

#include <stagger/core/requirements.hpp>

#include <concepts>
#include <cstddef>
#include <vector>

namespace stagger {

/// A value that consists of rows, some of which can be taken out and put together again.
///  - `rows()`: how many there are
///  - `resize_rows(like, n)`: gives it n rows of the same shape as those of `like`, which may be
///    the value itself; their contents are unspecified
///  - `copy_rows(at, from, first, n)`: rows [first, first + n) of another value become rows
///    [at, at + n) of this one
template <class T>
concept RowSplittable = std::copyable<T> && std::default_initializable<T> &&
                        requires(T& to, T const& from, std::size_t n) {
                          { from.rows() } -> std::convertible_to<std::size_t>;
                          to.resize_rows(from, n);
                          to.copy_rows(n, from, n, n);
                        };

namespace detail {

/// Rows of any type that has them.
template <class T> struct Rows {
  static constexpr bool exist = false;
};

template <RowSplittable T> struct Rows<T> {
  static constexpr bool exist = true;
  static std::size_t count(T const& value) { return value.rows(); }
  static void resize(T& value, T const& like, std::size_t rows) { value.resize_rows(like, rows); }
  static void copy(T& to, std::size_t at, T const& from, std::size_t first, std::size_t rows) {
    to.copy_rows(at, from, first, rows);
  }
};

/// A vector's rows are its elements.
template <class U> struct Rows<std::vector<U>> {
  static constexpr bool exist = true;
  static std::size_t count(std::vector<U> const& value) { return value.size(); }
  static void resize(std::vector<U>& value, std::vector<U> const&, std::size_t rows) {
    value.resize(rows);
  }
  static void copy(std::vector<U>& to, std::size_t at, std::vector<U> const& from,
                   std::size_t first, std::size_t rows) {
    for (std::size_t i = 0; i < rows; ++i) to[at + i] = from[first + i];
  }
};

}  // namespace detail
}  // namespace stagger
