// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Scratch memory that settles: it allocates while it learns how much is needed, then never
/// again.

#include <cstddef>
#include <cstdint>
#include <span>

#include <stagger/core/alignment.hpp>
#include <stagger/core/list.hpp>

namespace stagger {

/// Hands out aligned scratch memory until `reset`. The first rounds may allocate; once the largest
/// round has been seen, everything comes from one block.
class Arena {
 public:
  /// Uninitialised memory for `count` elements, valid until `reset`.
  template <class T> [[nodiscard]] std::span<T> take(std::size_t count) {
    std::size_t const bytes = detail::aligned_bytes(count, sizeof(T));
    if (blocks_.empty() || used_ + bytes > blocks_.back().bytes) add_block(bytes);
    std::byte* const memory = static_cast<std::byte*>(blocks_.back().memory.get()) + used_;
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
    for (Block const& block : blocks_) sum += block.bytes;
    return sum;
  }

 private:
  struct Block {
    detail::AlignedMemory memory;
    std::size_t bytes = 0;
  };

  void merge() {
    if (blocks_.size() > 1) {
      blocks_.clear();
      add_block(total_);
    }
    used_ = 0;
    total_ = 0;
  }

  void add_block(std::size_t bytes) {
    blocks_.push_back({detail::aligned_memory(bytes), bytes});
    used_ = 0;
  }

  List<Block> blocks_;
  std::size_t used_ = 0;   // bytes of the last block
  std::size_t total_ = 0;  // bytes of this round
};

}  // namespace stagger
