// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   An array with one or two dimensions, indexed by any integer, usable in constant
///         expressions.

#include <stagger/core/requirements.hpp>

#include <concepts>
#include <cstddef>
#include <utility>

#include <stagger/core/basic_algorithm.hpp>

namespace stagger {

/// A value for each rank, stage or action, or for each pair of two of them. Its size is given once.
///
/// It replaces std::vector, whose index must be a std::size_t, and whose operator[] costs a
/// compiler another call for each element that a constant expression looks at.
template <class T> class Grid {
 public:
  using value_type = T;

  constexpr Grid() = default;
  template <std::integral N>
  constexpr explicit Grid(N size, T const& value = T{}) : Grid(size, 1, value) {}
  template <std::integral R, std::integral C>
  constexpr Grid(R rows, C columns, T const& value) : Grid() {
    columns_ = static_cast<std::ptrdiff_t>(columns);
    allocate(static_cast<std::ptrdiff_t>(rows) * columns_);
    for (std::ptrdiff_t i = 0; i < size_; ++i) items_[i] = value;
  }
  constexpr Grid(Grid const& other) : Grid() {
    columns_ = other.columns_;
    allocate(other.size_);
    std::copy(other.begin(), other.end(), items_);
  }
  constexpr Grid(Grid&& other) noexcept
      : items_(std::exchange(other.items_, nullptr)),
        size_(std::exchange(other.size_, 0)),
        columns_(other.columns_) {}
  constexpr Grid& operator=(Grid other) noexcept {
    std::swap(items_, other.items_);
    std::swap(size_, other.size_);
    std::swap(columns_, other.columns_);
    return *this;
  }
  constexpr ~Grid() { delete[] items_; }

  [[nodiscard]] constexpr int size() const noexcept { return static_cast<int>(size_); }
  [[nodiscard]] constexpr bool empty() const noexcept { return size_ == 0; }
  [[nodiscard]] constexpr T* begin() noexcept { return items_; }
  [[nodiscard]] constexpr T* end() noexcept { return items_ + size_; }
  [[nodiscard]] constexpr T const* begin() const noexcept { return items_; }
  [[nodiscard]] constexpr T const* end() const noexcept { return items_ + size_; }
  template <std::integral I> [[nodiscard]] constexpr T& operator[](I i) noexcept {
    return items_[i];
  }
  template <std::integral I> [[nodiscard]] constexpr T const& operator[](I i) const noexcept {
    return items_[i];
  }
  template <std::integral R, std::integral C>
  [[nodiscard]] constexpr T& operator()(R row, C column) noexcept {
    return items_[static_cast<std::ptrdiff_t>(row) * columns_ +
                  static_cast<std::ptrdiff_t>(column)];
  }
  template <std::integral R, std::integral C>
  [[nodiscard]] constexpr T const& operator()(R row, C column) const noexcept {
    return items_[static_cast<std::ptrdiff_t>(row) * columns_ +
                  static_cast<std::ptrdiff_t>(column)];
  }

  friend constexpr bool operator==(Grid const& a, Grid const& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end());
  }

 private:
  constexpr void allocate(std::ptrdiff_t size) {
    items_ = new T[static_cast<std::size_t>(size)];
    size_ = size;
  }

  T* items_ = nullptr;
  std::ptrdiff_t size_ = 0, columns_ = 1;
};

}  // namespace stagger
