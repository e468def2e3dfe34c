// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The alignment of all memory that the library lays out.

#include <stagger/core/requirements.hpp>

#include <cstddef>
#include <memory>
#include <new>

namespace stagger {

/// Alignment of all memory that the library lays out, in bytes. Equal alignment on every path is
/// part of the promise that a pipeline and one device produce the same bits: vectorised sums depend
/// on it.
inline constexpr std::size_t alignment_bytes = 64;

namespace detail {

/// The next multiple of the alignment.
[[nodiscard]] constexpr std::size_t aligned(std::size_t bytes) noexcept {
  return (bytes + alignment_bytes - 1) / alignment_bytes * alignment_bytes;
}

struct AlignedDelete {
  void operator()(void* memory) const noexcept {
    ::operator delete(memory, std::align_val_t{alignment_bytes});
  }
};
using AlignedMemory = std::unique_ptr<void, AlignedDelete>;

[[nodiscard]] inline AlignedMemory aligned_memory(std::size_t bytes) {
  return AlignedMemory(::operator new(bytes, std::align_val_t{alignment_bytes}));
}

/// Bytes of `count` elements, a multiple of the alignment.
/// @throws std::bad_array_new_length  where no size_t holds them
[[nodiscard]] inline std::size_t aligned_bytes(std::size_t count, std::size_t element) {
  if (count > (~std::size_t{0} - alignment_bytes) / element) throw std::bad_array_new_length();
  return aligned(count * element);
}

}  // namespace detail
}  // namespace stagger
