// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Copies of rows that belong to a large value.

#include <cstddef>
#include <cstring>

#include <stagger/core/requirements.hpp>

namespace stagger::detail {

/// Copies `size` trivially copyable elements that do not overlap. From half a KiB on, it takes the
/// processor's string instruction, which writes cache lines without reading them first. memcpy does
/// likewise, but only for lengths at which a single copy gains by it; a value that is copied in rows
/// gains earlier.
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

}  // namespace stagger::detail
