// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   An array whose length is given once; its elements never move. One copy of the code that
///         makes and destroys them serves every type.

#include <stagger/core/requirements.hpp>

#include <concepts>
#include <cstddef>
#include <cstring>
#include <new>
#include <type_traits>
#include <utility>

namespace stagger {

namespace detail {

/// How the elements of a FixedArray are made and destroyed.
struct ElementOps {
  std::size_t size;
  std::size_t alignment;
  void (*make)(void* element);              // null: all bytes are zero
  void (*destroy)(void* element) noexcept;  // null: nothing to do
};

// Functions instead of lambdas, of which g++ compiles three for each.
template <class T> void make_element(void* element) { ::new (element) T(); }
template <class T> void destroy_element(void* element) noexcept { static_cast<T*>(element)->~T(); }
template <class T> constexpr ElementOps make_element_ops() {
  ElementOps ops{sizeof(T), alignof(T), nullptr, nullptr};
  if constexpr (!std::is_trivially_default_constructible_v<T>) ops.make = &make_element<T>;
  if constexpr (!std::is_trivially_destructible_v<T>) ops.destroy = &destroy_element<T>;
  return ops;
}
template <class T> inline constexpr ElementOps element_ops = make_element_ops<T>();

/// Destroys elements, the last first, and gives their memory back.
[[gnu::cold]] [[gnu::noinline]] inline void destroy_elements(void* items, std::size_t count,
                                                             ElementOps const& ops) noexcept {
  if (items == nullptr) return;
  auto* const first = static_cast<std::byte*>(items);
  if (ops.destroy != nullptr)
    while (count-- > 0) ops.destroy(first + count * ops.size);
  if (ops.alignment > __STDCPP_DEFAULT_NEW_ALIGNMENT__)
    ::operator delete(items, std::align_val_t{ops.alignment});
  else
    ::operator delete(items);
}

/// @throws std::bad_array_new_length  and whatever an element throws; then none are left
[[nodiscard]] [[gnu::cold]] [[gnu::noinline]] inline void* make_elements(std::size_t count,
                                                                         ElementOps const& ops) {
  std::size_t bytes = 0;
  if (__builtin_mul_overflow(count, ops.size, &bytes)) throw std::bad_array_new_length();
  void* const items = ops.alignment > __STDCPP_DEFAULT_NEW_ALIGNMENT__
                          ? ::operator new(bytes, std::align_val_t{ops.alignment})
                          : ::operator new(bytes);
  if (ops.make == nullptr) return std::memset(items, 0, bytes);
  std::size_t made = 0;
  try {
    for (; made < count; ++made) ops.make(static_cast<std::byte*>(items) + made * ops.size);
  } catch (...) {
    destroy_elements(items, made, ops);
    throw;
  }
  return items;
}

}  // namespace detail

/// As many default-constructed elements as it was made with. They need not be movable, and no code
/// is compiled that would move them.
template <class T> class FixedArray {
 public:
  FixedArray() = default;
  explicit FixedArray(std::integral auto size)
      : size_(static_cast<std::size_t>(size)),
        items_(detail::make_elements(size_, detail::element_ops<T>)) {}
  FixedArray(FixedArray&& other) noexcept
      : size_(std::exchange(other.size_, 0)), items_(std::exchange(other.items_, nullptr)) {}
  FixedArray& operator=(FixedArray&& other) noexcept {
    std::swap(size_, other.size_);
    std::swap(items_, other.items_);
    return *this;
  }
  ~FixedArray() { detail::destroy_elements(items_, size_, detail::element_ops<T>); }

  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] T* data() noexcept { return static_cast<T*>(items_); }
  [[nodiscard]] T const* data() const noexcept { return static_cast<T const*>(items_); }
  [[nodiscard]] T* begin() noexcept { return static_cast<T*>(items_); }
  [[nodiscard]] T* end() noexcept { return static_cast<T*>(items_) + size_; }
  [[nodiscard]] T const* begin() const noexcept { return static_cast<T const*>(items_); }
  [[nodiscard]] T const* end() const noexcept { return static_cast<T const*>(items_) + size_; }
  /// Takes any integer, so that callers need not convert indices.
  template <std::integral I> [[nodiscard]] T& operator[](I i) noexcept {
    return static_cast<T*>(items_)[i];
  }
  template <std::integral I> [[nodiscard]] T const& operator[](I i) const noexcept {
    return static_cast<T const*>(items_)[i];
  }
  [[nodiscard]] T& front() noexcept { return *static_cast<T*>(items_); }

 private:
  std::size_t size_ = 0;
  void* items_ = nullptr;
};

}  // namespace stagger
