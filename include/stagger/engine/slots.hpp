// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Arrays of objects of a type known only to the layer they belong to.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <utility>

#include <stagger/core/tensor.hpp>

namespace stagger {

/// Memory an activation holds, in bytes: `value.bytes()` where the type says so, else its size.
template <class T> [[nodiscard]] std::uint64_t byte_count(T const& value) {
  if constexpr (requires {
                  { value.bytes() } -> std::convertible_to<std::uint64_t>;
                })
    return value.bytes();
  else
    return sizeof(T);
}

namespace detail {

/// How to make, find and destroy the objects of one type.
struct SlotType {
  std::size_t stride = 0;  // bytes from one object to the next, a multiple of the alignment
  void (*construct)(void*) = nullptr;
  void (*destroy)(void*) noexcept = nullptr;
  void (*assign)(void* to, void const* from) = nullptr;
  std::uint64_t (*bytes)(void const*) = nullptr;
};

template <class T>
inline constexpr SlotType slot_type{
    (sizeof(T) + alignment_bytes - 1) / alignment_bytes * alignment_bytes,
    [](void* memory) { ::new (memory) T(); },
    [](void* object) noexcept { static_cast<T*>(object)->~T(); },
    [](void* to, void const* from) { *static_cast<T*>(to) = *static_cast<T const*>(from); },
    [](void const* object) { return byte_count(*static_cast<T const*>(object)); },
};

/// An array of `count` default-constructed objects of an erased type. Slots never move: it is
/// replaced, not grown.
class Slots {
 public:
  Slots() = default;
  Slots(SlotType const& type, std::size_t count) : type_(&type) {
    memory_.reset(
        ::operator new (type.stride*(count == 0 ? 1 : count), std::align_val_t{alignment_bytes}));
    try {
      for (; count_ < count; ++count_) type.construct((*this)[count_]);
    } catch (...) {
      clear();
      throw;
    }
  }
  Slots(Slots&& other) noexcept
      : type_(other.type_),
        memory_(std::move(other.memory_)),
        count_(std::exchange(other.count_, 0)) {}
  Slots& operator=(Slots&& other) noexcept {
    clear();
    type_ = other.type_;
    memory_ = std::move(other.memory_);
    count_ = std::exchange(other.count_, 0);
    return *this;
  }
  Slots(Slots const&) = delete;
  Slots& operator=(Slots const&) = delete;
  ~Slots() { clear(); }

  [[nodiscard]] std::size_t count() const noexcept { return count_; }

  [[nodiscard]] void* operator[](std::size_t slot) const noexcept {
    return static_cast<std::byte*>(memory_.get()) + slot * type_->stride;
  }

  /// Memory held by all objects, in bytes.
  [[nodiscard]] std::uint64_t bytes() const {
    std::uint64_t sum = 0;
    for (std::size_t slot = 0; slot < count_; ++slot) sum += type_->bytes((*this)[slot]);
    return sum;
  }

 private:
  void clear() noexcept {
    while (count_ != 0) type_->destroy((*this)[--count_]);
  }

  SlotType const* type_ = nullptr;
  std::unique_ptr<void, AlignedDelete> memory_;
  std::size_t count_ = 0;
};

}  // namespace detail
}  // namespace stagger
