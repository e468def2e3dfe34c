// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Where parameters lie: in host memory, or in memory of a back end that no host may touch.

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <span>
#include <utility>

#include <stagger/core/alignment.hpp>
#include <stagger/core/index_range.hpp>
#include <stagger/core/list.hpp>
#include <stagger/model/parameter.hpp>

namespace stagger::detail {

/// Memory of a back end, and what is done there with parameters. Nothing here has a price for
/// parameters in host memory, which have none of these.
struct ParameterMemory {
  int device;
  // Between steps; done when they return. They throw what the device refuses.
  void* (*allocate)(ParameterMemory const&, std::size_t bytes);  // zeros
  void (*release)(ParameterMemory const&, void*) noexcept;
  void (*upload)(ParameterMemory const&, void* to, void const* from, std::size_t bytes);
  void (*download)(ParameterMemory const&, void* to, void const* from, std::size_t bytes);
  // In the order of the work of the rank whose turn it is, else as those above.
  void (*copy)(ParameterMemory const&, void* to, void const* from, std::size_t bytes);
  void (*add)(ParameterMemory const&, ElementType, void* sum, void const* more, std::size_t size);
  void (*sum_squares)(ParameterMemory const&, ElementType, void const* gradient, std::size_t size,
                      double* sum);
  /// Tells the back end of a refusal, since the step may be decided already.
  void (*zero)(ParameterMemory const&, void* memory, std::size_t bytes) noexcept;
};

/// A block of one of both kinds of memory, made as zeros, aligned to `alignment_bytes`.
class ParameterBlock {
 public:
  ParameterBlock() = default;
  ParameterBlock(ParameterBlock&& other) noexcept
      : memory_(other.memory_),
        data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0)) {}
  ParameterBlock& operator=(ParameterBlock&& other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~ParameterBlock() { release(); }

  /// @param memory  null: the host's
  [[gnu::cold]] [[gnu::noinline]] void make(ParameterMemory const* memory, std::size_t bytes) {
    release();
    if (bytes != 0) {
      data_ = static_cast<std::byte*>(memory != nullptr ? memory->allocate(*memory, bytes)
                                                        : make_on_host(bytes));
    }
    memory_ = memory;
    size_ = bytes;
  }

  /// Moves the contents to another memory; neither is the host's own.
  [[gnu::cold]] [[gnu::noinline]] void move_to(ParameterMemory const* memory) {
    if (memory == memory_) return;
    ParameterBlock there;
    there.make(memory, size_);
    there.take_from(*this);
    *this = std::move(there);
  }

  /// Copies the contents of another, of any memory but the host's own, by way of the host.
  [[gnu::cold]] [[gnu::noinline]] void take_from(ParameterBlock const& other) {
    if (size_ == 0) return;
    ParameterBlock host;
    host.make(nullptr, size_);
    other.memory_->download(*other.memory_, host.data_, other.data_, size_);
    memory_->upload(*memory_, data_, host.data_, size_);
  }

  /// Takes over the contents of another, of the same memory.
  [[gnu::cold]] [[gnu::noinline]] void copy_from(ParameterBlock const& other) {
    if (size_ != other.size_) make(other.memory_, other.size_);
    if (size_ == 0) return;
    if (memory_ != nullptr)
      memory_->copy(*memory_, data_, other.data_, size_);
    else
      std::memcpy(data_, other.data_, size_);
  }

  void zero(std::size_t first = 0, std::size_t last = static_cast<std::size_t>(-1)) noexcept {
    if (last > size_) last = size_;
    if (first >= last) return;
    if (memory_ != nullptr)
      memory_->zero(*memory_, data_ + first, last - first);
    else
      std::memset(data_ + first, 0, last - first);
  }

  [[nodiscard]] ParameterMemory const* memory() const noexcept { return memory_; }
  [[nodiscard]] std::byte* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] std::span<std::byte> span() const noexcept { return {data_, size_}; }
  /// Null in an empty block.
  [[nodiscard]] std::byte* at(std::size_t offset) const noexcept {
    return size_ == 0 ? nullptr : data_ + offset;
  }

 private:
  static void* make_on_host(std::size_t bytes) {
    return std::memset(aligned_memory(bytes).release(), 0, bytes);
  }
  [[gnu::cold]] [[gnu::noinline]] void release() noexcept {
    if (data_ == nullptr) return;
    if (memory_ != nullptr)
      memory_->release(*memory_, data_);
    else
      AlignedDelete{}(data_);
    data_ = nullptr;
    size_ = 0;
  }

  ParameterMemory const* memory_ = nullptr;
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

/// Where the parameters of a layer are.
struct ParameterBlocks {
  List<ParameterBlock> values;  // [versions] of which the first lasts
  ParameterBlock gradients;
  std::array<ParameterBlock, 2> states;     // of the optimizer, for a part of the layer
  ByteRange held{0, 0};                     // that part
  ParameterMemory const* memory = nullptr;  // where they lie; null: on the host
};

}  // namespace stagger::detail
