// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Sums of several vectors, element by element, in the order in which they are given.

#include <stagger/core/requirements.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include <stagger/core/basic_algorithm.hpp>
#include <stagger/core/detail/copy_row.hpp>

namespace stagger::detail {

/// sum += more[0] + ... + more[count - 1], added from the left. Each block of the sum stays in the
/// first cache until all vectors have been added to it, so that memory is read and written once.
/// The trip count of a whole block is a constant, of which -O2 makes vector code.
template <class T>
void add_up(T* sum, T const* const* more, std::size_t count, std::size_t size) noexcept {
  constexpr std::size_t block = 1024;
  for (std::size_t at = 0; at < size; at += block)
    for (std::size_t m = 0; m < count; ++m) {
      T* __restrict const to = sum + at;
      T const* __restrict const from = more[m] + at;
      if (size - at >= block)
        for (std::size_t i = 0; i < block; ++i) to[i] += from[i];
      else
        for (std::size_t i = 0; i < size - at; ++i) to[i] += from[i];
    }
}

/// sum = a + b. From 1 MiB on, when a cache has hardly room for it, the sum is written past the
/// caches: otherwise each line would be read before it is overwritten.
template <class T>
void add_two(T* __restrict sum, T const* __restrict a, T const* __restrict b,
             std::size_t size) noexcept {
  std::size_t at = 0;
#if defined(__x86_64__) && !defined(__CUDACC__)
  if constexpr (std::same_as<T, float> || std::same_as<T, double>)
    if (size * sizeof(T) >= (1U << 20)) {
      using Vector [[gnu::vector_size(16)]] = T;
      constexpr std::size_t line = 64;
      for (; reinterpret_cast<std::uintptr_t>(sum + at) % line != 0; ++at) sum[at] = a[at] + b[at];
      for (; at + line / sizeof(T) <= size; at += line / sizeof(T))
        for (std::size_t i = at; i < at + line / sizeof(T); i += sizeof(Vector) / sizeof(T)) {
          Vector left, right;
          std::memcpy(&left, a + i, sizeof left);
          std::memcpy(&right, b + i, sizeof right);
          asm volatile("movntps %1, (%0)" : : "r"(sum + i), "x"(left + right) : "memory");
        }
      finish_past_caches();
    }
#endif
  constexpr std::size_t block = 256;  // a constant, as in add_up
  for (; at + block <= size; at += block) {
    T* __restrict const to = sum + at;
    T const* __restrict const left = a + at;
    T const* __restrict const right = b + at;
    for (std::size_t i = 0; i < block; ++i) to[i] = left[i] + right[i];
  }
  for (; at < size; ++at) sum[at] = a[at] + b[at];
}

/// sum = terms[0] + ... + terms[count - 1], added from the left. What `sum` held is not read: each
/// block of more than two terms is added up in the first cache and then copied. @pre count >= 2
template <class T>
void add_terms(T* sum, T const* const* terms, std::size_t count, std::size_t size) noexcept {
  if (count == 2) {
    add_two(sum, terms[0], terms[1], size);
    return;
  }
  constexpr std::size_t block = 2048 / sizeof(T);
  alignas(64) T added[block];
  for (std::size_t at = 0; at < size; at += block) {
    std::size_t const here = std::min(block, size - at);
    add_two(added, terms[0] + at, terms[1] + at, here);
    for (std::size_t m = 2; m < count; ++m) {
      T const* const more = terms[m] + at;
      add_up(added, &more, 1, here);
    }
    copy_row(sum + at, added, here);
  }
}

/// Adds the squares of elements to a sum, one after the other.
template <class T> double add_squares(double sum, T const* elements, std::size_t size) noexcept {
  for (std::size_t i = 0; i < size; ++i)
    sum += static_cast<double>(elements[i]) * static_cast<double>(elements[i]);
  return sum;
}

}  // namespace stagger::detail
