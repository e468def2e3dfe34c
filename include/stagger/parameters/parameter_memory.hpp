// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The memory for parameters: the host's, or that of a back end, which the host must not
///         access.

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>

#include <stagger/core/alignment.hpp>
#include <stagger/core/index_range.hpp>
#include <stagger/core/list.hpp>
#include <stagger/model/parameter.hpp>

namespace stagger::detail {

/// Memory of a back end, and the operations on parameters there. Parameters in host memory use none
/// of these functions and pay nothing for them.
struct ParameterMemory {
  int device;
  ParameterMemory const* host;  // from and to which `copy` is fast; null: there is none
  // Called between steps; complete when they return. They throw if the device refuses.
  void* (*allocate)(ParameterMemory const&, std::size_t bytes);  // zeros
  void (*release)(ParameterMemory const&, void*) noexcept;
  void (*upload)(ParameterMemory const&, void* to, void const* from, std::size_t bytes);
  void (*download)(ParameterMemory const&, void* to, void const* from, std::size_t bytes);
  // Enqueued after the work of the current rank; between steps, complete when they return.
  // Either end of a copy may lie in `host`.
  void (*copy)(ParameterMemory const&, void* to, void const* from, std::size_t bytes);
  void (*add)(ParameterMemory const&, ElementType, void* sum, void const* more, std::size_t size);
  void (*sum_squares)(ParameterMemory const&, ElementType, void const* gradient, std::size_t size,
                      double* sum);
  /// A refusal is reported to the back end, since the step may already be decided.
  void (*zero)(ParameterMemory const&, void* memory, std::size_t bytes) noexcept;

  /// A device may still work on what is there: nothing is given back from now on.
  [[gnu::cold]] void abandon() noexcept {
    release = [](ParameterMemory const&, void*) noexcept {};
  }
};

/// A block of host or back end memory, initialised with zeros, aligned to `alignment_bytes`.
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
    if (bytes != 0)
      data_ = static_cast<std::byte*>(memory != nullptr
                                          ? memory->allocate(*memory, bytes)
                                          : std::memset(aligned_memory(bytes).release(), 0, bytes));
    memory_ = memory;
    size_ = bytes;
  }

  /// Host memory without initial values: the system gives it page by page, as it is written.
  [[gnu::cold]] void make_unwritten(std::size_t bytes) {
    release();
    if (bytes != 0) data_ = static_cast<std::byte*>(aligned_memory(bytes).release());
    memory_ = nullptr;
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

  /// Copies the contents of another block, which is in another memory than the host's own, via the
  /// host.
  [[gnu::cold]] [[gnu::noinline]] void take_from(ParameterBlock const& other) {
    if (size_ == 0) return;
    ParameterBlock host;
    host.make(nullptr, size_);
    other.memory_->download(*other.memory_, host.data_, other.data_, size_);
    memory_->upload(*memory_, data_, host.data_, size_);
  }

  /// Copies the contents of another block in the same memory.
  [[gnu::cold]] [[gnu::noinline]] void copy_from(ParameterBlock const& other) {
    if (size_ != other.size_) make(other.memory_, other.size_);
    if (size_ == 0) return;
    if (memory_ != nullptr)
      memory_->copy(*memory_, data_, other.data_, size_);
    else
      std::memcpy(data_, other.data_, size_);
  }

  void zero(std::size_t first = 0, std::size_t last = ~std::size_t{0}) noexcept {
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

/// The optimizer's states of a layer, or of a part of it.
struct HeldStates {
  std::array<ParameterBlock, 2> states;
  ByteRange held{0, 0};  // the part whose states are here

  /// Allocates those of a part, as zeros.
  /// @param count  states of the optimizer
  /// @return  false if those of another part are here; then nothing changes
  [[gnu::cold]] bool hold(ByteRange part, ParameterMemory const* memory, std::size_t count) {
    if (held.last != 0) return part.first == held.first && part.last == held.last;
    for (std::size_t s = 0; s < count; ++s) states[s].make(memory, part.size());
    held = part;  // last: there may be no memory
    return true;
  }
  [[nodiscard]] std::uint64_t state_bytes() const noexcept {
    return states[0].size() + states[1].size();
  }
};

struct ParameterBlocks : HeldStates {
  List<ParameterBlock> values;  // [versions] the first one persists between steps
  ParameterBlock gradients;
  ParameterMemory const* memory = nullptr;  // the memory that has them; null: the host's

  /// What lasts from step to step: the first version of the values, then the states.
  [[nodiscard]] ParameterBlock& lasting(std::size_t b) noexcept {
    return b == 0 ? values[0] : states[b - 1];
  }
  [[nodiscard]] ParameterBlock const& lasting(std::size_t b) const noexcept {
    return b == 0 ? values[0] : states[b - 1];
  }
};

/// The gradients that a copy of a layer has memory for. Where owners lie in several processes, a
/// process needs the whole gradients of its own owners, and of others only what it adds up.
struct KeptGradients {
  enum class Of : std::uint8_t {
    owner,  // all of its owner
    other,  // those that arrive from its owner, which is in another process
    first,  // those that arrive from the first owner, which is in another process. This process's
            // own gradients take the memory of the sums, so that it needs no second array
  };
  Of of = Of::owner;
  ByteRange part{};  // of the layer
  [[nodiscard]] bool arrive() const noexcept { return of != Of::owner; }
  friend bool operator==(KeptGradients const& a, KeptGradients const& b) noexcept {
    return a.of == b.of && a.part.first == b.part.first && a.part.last == b.part.last;
  }
};

/// The parameters of a layer before a step, which are restored if the step fails.
class SavedParameters {
 public:
  /// Allocates memory for a part of the layer of this many bytes, unless there is some already.
  [[gnu::cold]] void make(ParameterMemory const* memory, std::size_t bytes, std::size_t states) {
    if (saved_[0].size() == bytes) return;
    for (std::size_t b = states + 1; b-- > 0;) saved_[b].make(memory, bytes);
  }
  void save(ParameterBlocks const& now) {
    for (std::size_t b = 0; b < saved_.size(); ++b) saved_[b].copy_from(now.lasting(b));
  }
  void restore(ParameterBlocks& now) const {
    for (std::size_t b = 0; b < saved_.size(); ++b) now.lasting(b).copy_from(saved_[b]);
  }
  /// Saves, or restores, a part whose states are here, on the host.
  [[gnu::noinline]] void copy_part(ParameterBlocks const& now, ByteRange part,
                                   bool back) const noexcept {
    if (part.first >= part.last) return;
    std::size_t const at = part.first - now.held.first;
    for (std::size_t b = 0; b < saved_.size(); ++b) {
      if (saved_[b].size() == 0) continue;
      std::byte* const here = now.lasting(b).data() + (b == 0 ? part.first : at);
      std::byte* const there = saved_[b].data() + at;
      std::memcpy(back ? here : there, back ? there : here, part.last - part.first);
    }
  }
  [[gnu::cold]] void move_to(ParameterMemory const* memory) {
    for (ParameterBlock& block : saved_) block.move_to(memory);
  }
  [[nodiscard]] std::uint64_t bytes() const noexcept {
    return saved_[0].size() + saved_[1].size() + saved_[2].size();
  }

 private:
  std::array<ParameterBlock, 3> saved_;  // as ParameterBlocks::lasting
};

/// The copy of a layer's parameters for the host, if they are in another memory or if the
/// optimizer's state is sharded.
class ShownParameters {
 public:
  /// Values, then states.
  [[nodiscard]] ParameterBlock const* blocks() const noexcept { return copies_.data(); }
  /// State `s` of a part of the layer.
  [[nodiscard]] std::span<std::byte> state(std::size_t s, ByteRange range) const noexcept {
    auto const& copy = copies_[s + 1];
    if (copy.size() == 0) return {};
    return {copy.data() + range.first, range.last - range.first};
  }

  /// Makes room for the values and whole states.
  /// @param bytes  of the values
  [[gnu::cold]] void make(std::size_t bytes, std::size_t states) {
    for (std::size_t b = 0; b <= states; ++b)
      if (copies_[b].size() != bytes) copies_[b].make(nullptr, bytes);
  }
  /// Copies what there is room for from the memory of a back end, or back. States that are not there
  /// stay.
  [[gnu::cold]] void copy_values(ParameterBlock const& there, bool back) const {
    copy(there, 0, 0, back);
  }
  [[gnu::cold]] void copy_states(HeldStates const& there, bool back) const {
    for (std::size_t s = 0; s < there.states.size(); ++s)
      copy(there.states[s], s + 1, there.held.first, back);
  }

  /// Makes copies of whole states that are sharded. Only the part that is here is valid until
  /// others send theirs.
  [[gnu::cold]] void spread(ParameterBlocks const& own, std::size_t states) {
    for (std::size_t s = 0; s < states; ++s) {
      ParameterBlock& copy = copies_[s + 1];
      if (copy.size() != 0 || own.gradients.size() == 0) continue;
      copy.make(nullptr, own.gradients.size());
      if (own.states[s].size() != 0)
        std::memcpy(copy.data() + own.held.first, own.states[s].data(), own.states[s].size());
    }
  }
  /// Copies the part that is here back, and frees the copies.
  [[gnu::cold]] void gather(ParameterBlocks const& own, std::size_t states) {
    for (std::size_t s = 0; s < states; ++s) {
      ParameterBlock& copy = copies_[s + 1];
      if (copy.size() != 0 && own.states[s].size() != 0)
        std::memcpy(own.states[s].data(), copy.data() + own.held.first, own.states[s].size());
      copy.make(nullptr, 0);
    }
  }

 private:
  /// @param first  byte of the layer at which the block begins
  void copy(ParameterBlock const& there, std::size_t b, std::size_t first, bool back) const {
    if (copies_[b].size() == 0 || there.size() == 0) return;
    ParameterMemory const& memory = *there.memory();
    std::byte* const here = copies_[b].data() + first;
    if (back)
      memory.upload(memory, there.data(), here, there.size());
    else
      memory.download(memory, here, there.data(), there.size());
  }

  std::array<ParameterBlock, 3> copies_;  // on the host
};

}  // namespace stagger::detail
