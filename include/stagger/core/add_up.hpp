// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Sums of several vectors, element by element, in the order in which they are given.

#include <stagger/core/requirements.hpp>

#include <algorithm>
#include <cstddef>

#include <stagger/core/copy_row.hpp>

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

/// sum = terms[0] + ... + terms[count - 1], added from the left. What `sum` held is not read: each
/// block is added up in the first cache and then copied. @pre count >= 2
template <class T>
void add_terms(T* sum, T const* const* terms, std::size_t count, std::size_t size) noexcept {
  constexpr std::size_t block = 2048 / sizeof(T);
  alignas(64) T added[block];
  for (std::size_t at = 0; at < size; at += block) {
    std::size_t const here = std::min(block, size - at);
    T const* __restrict const a = terms[0] + at;
    T const* __restrict const b = terms[1] + at;
    if (here == block)
      for (std::size_t i = 0; i < block; ++i) added[i] = a[i] + b[i];
    else
      for (std::size_t i = 0; i < here; ++i) added[i] = a[i] + b[i];
    for (std::size_t m = 2; m < count; ++m) {
      T const* const more = terms[m] + at;
      add_up(added, &more, 1, here);
    }
    copy_row(sum + at, added, here);
  }
}

}  // namespace stagger::detail
