// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Copies of waiting pushes, in memory that is reused.

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>

#include <stagger/core/index_range.hpp>
#include <stagger/core/list.hpp>
#include <stagger/parameters/parameter_memory.hpp>

namespace stagger::detail {

class BlockPool {
 public:
  explicit BlockPool(std::size_t bytes) : bytes_(bytes) {}

  /// Makes sure that `count` blocks can be in use without further allocations.
  [[gnu::cold]] void reserve(std::size_t count) {
    spare_.reserve(count);
    for (; made_ < count; ++made_) spare_.emplace_back().make(nullptr, bytes_);
  }
  /// @param from  values of one block; if a part is given, only that part is copied
  [[nodiscard]] ParameterBlock filled(std::byte const* from, ByteRange part = {}) {
    if (spare_.empty()) reserve(made_ + 1);
    ParameterBlock block = std::move(spare_.back());
    spare_.pop_back();
    std::size_t const last = std::min(part.last, bytes_);
    if (bytes_ != 0) std::memcpy(block.data() + part.first, from + part.first, last - part.first);
    return block;
  }
  /// Likewise into a block that may be in use already.
  void fill(ParameterBlock& block, std::byte const* from, ByteRange part) {
    if (block.size() != 0) give_back(std::move(block));
    block = filled(from, part);
  }
  void give_back(ParameterBlock block) { spare_.push_back(std::move(block)); }

 private:
  std::size_t bytes_;
  std::size_t made_ = 0;
  List<ParameterBlock> spare_;
};

}  // namespace stagger::detail
