// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Arithmetic of collectives, chosen once per element type, so that the engine below has
/// none.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>

#include <stagger/collective/communicator.hpp>

namespace stagger::collective::detail {

/// What an operation must know about its elements.
struct ElementType {
  std::size_t size = 1;
  char const* family = "byte";
  /// Adds `count` elements from `first` on of all `parts` in rank order; writes to part `only`, or
  /// to all if -1.
  void (*fold)(Reduction, void* const* parts, int ranks, std::size_t first, std::size_t count,
               int only) = nullptr;
  /// own := own (+) other
  void (*combine)(Reduction, void* own, void const* other, std::size_t count) = nullptr;

  [[nodiscard]] std::string text() const {
    return size == 1 && family[0] == 'b' ? family : family + std::to_string(8 * size);
  }
};

template <Number T> [[nodiscard]] constexpr T reduce(Reduction reduction, T a, T b) noexcept {
  switch (reduction) {
    case Reduction::min:
      return b < a ? b : a;
    case Reduction::max:
      return a < b ? b : a;
    case Reduction::sum:
      break;
  }
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
  } else {
    return a + b;
  }
}

template <Reduction R, Number T>
void combine_as(T* own, T const* other, std::size_t count) noexcept {
  constexpr std::size_t block = 1024;  // a fixed trip count, so that -O2 makes vector code of it
  std::size_t i = 0;
  for (; i + block <= count; i += block) {
    T* const to = own + i;
    T const* const from = other + i;
    T kept[block];
    for (std::size_t k = 0; k < block; ++k) kept[k] = reduce(R, to[k], from[k]);
    std::memcpy(to, kept, sizeof(kept));
  }
  for (; i < count; ++i) own[i] = reduce(R, own[i], other[i]);
}

template <Number T>
void combine(Reduction reduction, void* own, void const* other, std::size_t count) {
  auto* const to = static_cast<T*>(own);
  auto const* const from = static_cast<T const*>(other);
  switch (reduction) {
    case Reduction::sum:
      return combine_as<Reduction::sum>(to, from, count);
    case Reduction::min:
      return combine_as<Reduction::min>(to, from, count);
    case Reduction::max:
      return combine_as<Reduction::max>(to, from, count);
  }
}

/// Both get the sum, without a copy of it between: of two ranks, each writes half of the other's
/// vector, which is what the time goes to.
template <Reduction R, Number T>
void fold_two(T* __restrict a, T* __restrict b, std::size_t count) noexcept {
  constexpr std::size_t block = 1024;  // as above
  std::size_t i = 0;
  for (; i + block <= count; i += block) {
    T* __restrict const x = a + i;
    T* __restrict const y = b + i;
    for (std::size_t k = 0; k < block; ++k) x[k] = y[k] = reduce(R, x[k], y[k]);
  }
  for (; i < count; ++i) a[i] = b[i] = reduce(R, a[i], b[i]);
}

template <Reduction R, Number T>
void fold_as(void* const* parts, int ranks, std::size_t first, std::size_t count, int only) {
  constexpr std::size_t block = 1024;
  T kept[block];
  auto const part = [&](int r) { return static_cast<T*>(parts[r]); };
  if (ranks == 2 && only < 0) return fold_two<R>(part(0) + first, part(1) + first, count);
  for (std::size_t at = first; at < first + count; at += block) {
    std::size_t const n = std::min(block, first + count - at);
    T const* const a = part(0) + at;
    T const* const b = part(1) + at;
    if (n == block) {
      for (std::size_t k = 0; k < block; ++k) kept[k] = reduce(R, a[k], b[k]);
    } else {
      for (std::size_t k = 0; k < n; ++k) kept[k] = reduce(R, a[k], b[k]);
    }
    for (int r = 2; r < ranks; ++r) {
      T const* const more = part(r) + at;
      if (n == block) {
        for (std::size_t k = 0; k < block; ++k) kept[k] = reduce(R, kept[k], more[k]);
      } else {
        for (std::size_t k = 0; k < n; ++k) kept[k] = reduce(R, kept[k], more[k]);
      }
    }
    for (int r = 0; r < ranks; ++r) {
      if (only < 0 || only == r) std::memcpy(part(r) + at, kept, n * sizeof(T));
    }
  }
}

/// @pre  ranks >= 2
template <Number T>
void fold(Reduction reduction, void* const* parts, int ranks, std::size_t first, std::size_t count,
          int only) {
  switch (reduction) {
    case Reduction::sum:
      return fold_as<Reduction::sum, T>(parts, ranks, first, count, only);
    case Reduction::min:
      return fold_as<Reduction::min, T>(parts, ranks, first, count, only);
    case Reduction::max:
      return fold_as<Reduction::max, T>(parts, ranks, first, count, only);
  }
}

template <Element T>
inline constexpr ElementType element_type = [] {
  ElementType type;
  type.size = sizeof(T);
  if constexpr (std::is_floating_point_v<T>)
    type.family = "float";
  else if constexpr (std::is_same_v<T, bool>)
    type.family = "bool";
  else if constexpr (std::is_integral_v<T>)
    type.family = std::is_signed_v<T> ? "int" : "uint";
  if constexpr (Number<T>) {
    type.fold = &fold<T>;
    type.combine = &combine<T>;
  }
  return type;
}();

/// Types are compared by what they are: two translation units, or `long` and `long long`, may
/// differ in address.
[[nodiscard]] inline bool same_type(ElementType const* a, ElementType const* b) noexcept {
  return a == b || (a != nullptr && b != nullptr && a->size == b->size &&
                    std::strcmp(a->family, b->family) == 0);
}

}  // namespace stagger::collective::detail
