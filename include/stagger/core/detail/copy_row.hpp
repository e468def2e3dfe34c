// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Copies of rows that belong to a large value.

#include <cstddef>
#include <cstdint>
#include <cstring>

#include <stagger/core/requirements.hpp>

namespace stagger::detail {

/// Copies `size` trivially copyable elements that do not overlap. From half a KiB on, it takes the
/// processor's string instruction, which writes cache lines without reading them first. memcpy does
/// likewise, but only for lengths at which a single copy gains by it; a value that is copied in
/// rows gains earlier.
template <class T> void copy_row(T* to, T const* from, std::size_t size) noexcept {
  std::size_t bytes = size * sizeof(T);
#if defined(__x86_64__) && !defined(__CUDA_ARCH__)
  if (bytes >= 512) {
    std::size_t words = bytes / 8;
    asm volatile("rep movsq" : "+D"(to), "+S"(from), "+c"(words) : : "memory");
    bytes %= 8;
  }
#endif
  if (bytes != 0) std::memcpy(to, from, bytes);
}

/// Likewise, a row of a value for which the caches have no room: it is written past them.
/// `finish_past_caches` must follow the last row.
template <class T> void copy_past_caches(T* to, T const* from, std::size_t size) noexcept {
#if defined(__x86_64__) && !defined(__CUDACC__)
  using Vector [[gnu::vector_size(16)]] = float;
  constexpr std::size_t line = 4 * sizeof(Vector);
  std::size_t const bytes = size * sizeof(T);
  if (reinterpret_cast<std::uintptr_t>(to) % sizeof(Vector) == 0 && bytes % line == 0) {
    for (std::size_t at = 0; at < bytes; at += line) {
      Vector part[4];
      std::memcpy(&part, reinterpret_cast<char const*>(from) + at, line);
      asm volatile(
          "movntps %1, (%0)\n\t"
          "movntps %2, 16(%0)\n\t"
          "movntps %3, 32(%0)\n\t"
          "movntps %4, 48(%0)"
          :
          : "r"(reinterpret_cast<char*>(to) + at), "x"(part[0]), "x"(part[1]), "x"(part[2]),
            "x"(part[3])
          : "memory");
    }
    return;
  }
#endif
  copy_row(to, from, size);
}

/// Writes past the caches are not ordered with others until this has been called.
inline void finish_past_caches() noexcept {
#if defined(__x86_64__) && !defined(__CUDACC__)
  asm volatile("sfence" : : : "memory");
#endif
}

}  // namespace stagger::detail
