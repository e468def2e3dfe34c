// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Ranges of consecutive indices or bytes, and blocks of rows and columns.

#include <stagger/core/requirements.hpp>

#include <cstddef>

namespace stagger {

/// first, first + 1, ..., last - 1: for (std::size_t const layer : layers) ...
struct IndexRange {
  struct At {
    std::size_t index;
    constexpr std::size_t operator*() const noexcept { return index; }
    constexpr At& operator++() noexcept {
      ++index;
      return *this;
    }
    friend constexpr bool operator==(At, At) noexcept = default;
  };

  std::size_t first = 0;
  std::size_t last = 0;
  [[nodiscard]] constexpr At begin() const noexcept { return {first}; }
  [[nodiscard]] constexpr At end() const noexcept { return {last}; }
  [[nodiscard]] constexpr std::size_t size() const noexcept { return last - first; }
};

/// Rows and columns of a value, from a corner on.
struct Block {
  std::size_t rows = 0;
  std::size_t columns = 0;
};

namespace detail {

/// A block that is copied from one value to another of the same erased type, or added to it.
struct BlockSource {
  static constexpr std::size_t most = 16;  // blocks copied in one call
  void const* from = nullptr;
  Block first{};            // where it begins in `from`
  std::size_t column = 0;   // where it begins in each row of the other value
  std::size_t columns = 0;  // how wide it is
  bool adds = false;
};

/// Part of a block of memory. Where it holds parameters, no element is divided.
struct ByteRange {
  std::size_t first = 0;
  std::size_t last = ~std::size_t{0};
  [[nodiscard]] constexpr std::size_t size() const noexcept { return last - first; }
  /// The smallest range with its bytes and those of another one, where empty ones do not count.
  [[nodiscard]] constexpr ByteRange with(ByteRange other) const noexcept {
    if (first >= last || other.first >= other.last) return first >= last ? other : *this;
    return {first < other.first ? first : other.first, last > other.last ? last : other.last};
  }
  /// The number of its bytes before an end.
  [[nodiscard]] constexpr std::size_t size_before(std::size_t end) const noexcept {
    return (last < end ? last : end) - (first < end ? first : end);
  }
};

}  // namespace detail
}  // namespace stagger
