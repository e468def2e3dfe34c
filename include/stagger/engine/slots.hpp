// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Arrays of objects whose type is known only to the layer to which they belong.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <new>
#include <tuple>
#include <type_traits>
#include <utility>

#include <stagger/core/alignment.hpp>
#include <stagger/core/index_range.hpp>
#include <stagger/core/is_optional.hpp>
#include <stagger/core/rows.hpp>

namespace stagger {

/// Memory of an activation, in bytes: `value.bytes()` if the type has it, otherwise its size.
template <class T> [[nodiscard]] std::uint64_t byte_count(T const& value) {
  if constexpr (requires {
                  { value.bytes() } -> std::convertible_to<std::uint64_t>;
                })
    return value.bytes();
  else
    return sizeof(T);
}

namespace detail {

struct LayerOps;

/// Whether all objects of a type have the same number of bytes in messages.
template <class T> inline constexpr bool fixed_payload = std::is_trivially_copyable_v<T>;

/// Size of a value in messages, in bytes: the elements of tensors and vectors, what a std::optional
/// has, and all fields of types with `fields()`; for other types, the memory that they hold.
template <class T> [[nodiscard]] std::uint64_t payload_bytes(T const& value) {
  if constexpr (fixed_payload<T>)
    return sizeof(T);
  else if constexpr (requires { value.fields(); })
    return std::apply([](auto const&... field) { return (payload_bytes(field) + ... + 0); },
                      value.fields());
  else if constexpr (is_optional<T>)
    return value ? payload_bytes(*value) : 0;
  else if constexpr (requires { value.size() * sizeof(*value.data()); })
    return value.size() * sizeof(*value.data());
  else
    return byte_count(value);
}

/// The columns that pass through a layer which joins the members' parts: all of them, or one
/// member's share.
struct PutShare {
  int member = 0;
  int members = 1;
  bool forward = false;  // whether only the share passes
  bool backward = false;
};

/// Columns of a value whose type is erased.
struct ColumnOps {
  std::size_t (*count)(void const*);
  void (*resize)(void* to, void const* like, Block);
  void (*copy)(void* to, Block at, void const* from, Block first, Block size);
  /// Takes this many rows of each source, in order, to the row `at` and those after it.
  void (*take)(void* to, std::size_t at, std::size_t rows, BlockSource const*, std::size_t count);
  std::uint64_t (*bytes)(void const*, Block);  // bytes of a block with these rows and columns
  /// Makes a layer that joins the members' parts, and gives its functions.
  void* (*put_together)(PutShare const&);
  LayerOps const& (*put_together_ops)();
  bool on_stream;  // copies and sums are enqueued with the work of the rank that runs
};

/// The functions that make, find and destroy the objects of one type.
struct SlotType {
  std::size_t stride = 0;  // bytes from one object to the next, a multiple of the alignment
  void (*construct)(void*) = nullptr;
  void (*destroy)(void*) noexcept = nullptr;
  void (*assign)(void* to, void const* from) = nullptr;
  std::uint64_t (*bytes)(void const*) = nullptr;
  std::uint64_t (*payload)(void const*) = nullptr;  // null: always `payload_bytes`
  std::uint64_t payload_bytes = 0;
  // Null where the type has no rows; see RowSplittable.
  std::size_t (*rows)(void const*) = nullptr;
  void (*resize_rows)(void*, void const* like, std::size_t rows) = nullptr;
  void (*copy_rows)(void* to, std::size_t at, void const* from, std::size_t first,
                    std::size_t count) = nullptr;
  bool rows_on_stream = false;  // copy_rows enqueues the copy with the work of the rank that runs
  /// Size of an object in messages.
  [[nodiscard]] std::uint64_t message_bytes(void const* object) const {
    return payload == nullptr ? payload_bytes : payload(object);
  }
};

/// The functions of a SlotType. Not lambdas, of which g++ compiles three functions for each.
template <class T> struct SlotFunctions {
  static void construct(void* memory) { ::new (memory) T(); }
  static void destroy(void* object) noexcept { static_cast<T*>(object)->~T(); }
  static void assign(void* to, void const* from) {
    *static_cast<T*>(to) = *static_cast<T const*>(from);
  }
  static std::uint64_t bytes(void const* object) {
    return byte_count(*static_cast<T const*>(object));
  }
  static std::uint64_t payload(void const* object) {
    return payload_bytes(*static_cast<T const*>(object));
  }
  static std::size_t rows(void const* value) {
    return Rows<T>::count(*static_cast<T const*>(value));
  }
  static void resize_rows(void* value, void const* like, std::size_t rows) {
    Rows<T>::resize(*static_cast<T*>(value), *static_cast<T const*>(like), rows);
  }
  static void copy_rows(void* to, std::size_t at, void const* from, std::size_t first,
                        std::size_t count) {
    Rows<T>::copy(*static_cast<T*>(to), at, *static_cast<T const*>(from), first, count);
  }
};

template <class T> constexpr SlotType make_slot_type() {
  using Functions = SlotFunctions<T>;
  SlotType type;
  type.stride = aligned(sizeof(T));
  type.construct = &Functions::construct;
  type.destroy = &Functions::destroy;
  type.assign = &Functions::assign;
  type.bytes = &Functions::bytes;
  if constexpr (fixed_payload<T>)
    type.payload_bytes = sizeof(T);
  else
    type.payload = &Functions::payload;
  if constexpr (Rows<T>::exist) {
    type.rows = &Functions::rows;
    type.resize_rows = &Functions::resize_rows;
    type.copy_rows = &Functions::copy_rows;
    static_assert(
        !requires { &T::rows_on_stream; } ||
            requires { typename std::bool_constant<T::rows_on_stream>; },
        "stagger: 'rows_on_stream' of an activation must be 'static constexpr bool "
        "rows_on_stream', true if copy_rows enqueues the copy");
    if constexpr (requires { T::rows_on_stream; }) type.rows_on_stream = T::rows_on_stream;
  }
  return type;
}

template <class T> inline constexpr SlotType slot_type = make_slot_type<T>();

/// An array of `count` default-constructed objects of an erased type. Objects never move: the array
/// is replaced, not grown.
class Slots {
 public:
  Slots() = default;
  Slots(SlotType const& type, std::size_t count) : type_(&type) {
    memory_ = aligned_memory(type.stride * (count == 0 ? 1 : count));
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

  /// Makes new objects if there are fewer than `count`, or if some are needed of another type.
  void provide(SlotType const& type, std::size_t count) {
    if (count_ < count || (count != 0 && type_ != &type)) *this = Slots(type, count);
  }

  [[nodiscard]] void* operator[](std::size_t slot) const noexcept {
    return static_cast<std::byte*>(memory_.get()) + slot * type_->stride;
  }

  /// Memory held by the largest object, in bytes.
  [[nodiscard]] std::uint64_t largest() const {
    std::uint64_t most = 0;
    for (std::size_t slot = 0; slot < count_; ++slot)
      if (auto const own = type_->bytes((*this)[slot]); own > most) most = own;
    return most;
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
  AlignedMemory memory_;
  std::size_t count_ = 0;
};

}  // namespace detail
}  // namespace stagger
