// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Scratch memory that settles: it allocates while it learns how much is needed, then never
/// again.

#include <cstddef>
#include <new>
#include <span>

#include <stagger/core/list.hpp>
#include <stagger/core/tensor.hpp>

namespace stagger {

/// Hands out aligned scratch memory until `reset`. The first rounds may allocate; once the largest
/// round has been seen, everything comes from one block.
class Arena {
 public:
  /// Uninitialised memory for `count` elements, valid until `reset`.
  template <class T> [[nodiscard]] std::span<T> take(std::size_t count) {
    if (count > (static_cast<std::size_t>(-1) - alignment_bytes) / sizeof(T))
      throw std::bad_array_new_length();
    std::size_t const bytes =
        (count * sizeof(T) + alignment_bytes - 1) / alignment_bytes * alignment_bytes;
    if (blocks_.empty() || used_ + bytes > blocks_.back().size()) add_block(bytes);
    std::byte* const memory = blocks_.back().data() + used_;
    used_ += bytes;
    total_ += bytes;
    return {reinterpret_cast<T*>(memory), count};
  }

  /// Takes everything back. Merges the blocks of a round that needed several.
  void reset() {
    if (total_ != 0) merge();
  }

  /// Memory held, in bytes.
  [[nodiscard]] std::uint64_t bytes() const noexcept {
    std::uint64_t sum = 0;
    for (auto const& block : blocks_) sum += block.bytes();
    return sum;
  }

 private:
  void merge() {
    if (blocks_.size() > 1) {
      blocks_.clear();
      add_block(total_);
    }
    used_ = 0;
    total_ = 0;
  }

  void add_block(std::size_t bytes) {
    blocks_.emplace_back(std::initializer_list<std::size_t>{bytes});
    used_ = 0;
  }

  List<Tensor<std::byte>> blocks_;
  std::size_t used_ = 0;   // bytes of the last block
  std::size_t total_ = 0;  // bytes of this round
};

}  // namespace stagger
