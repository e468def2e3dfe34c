// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A growable array that is cheap to compile: one copy of the code that grows it, whatever
///         it holds.

#include <stagger/core/requirements.hpp>

#include <concepts>
#include <cstddef>
#include <cstring>
#include <initializer_list>
#include <new>
#include <span>
#include <type_traits>
#include <utility>

namespace stagger {

namespace detail {

/// Memory and counts of a List, its element type unknown.
struct RawList {
  std::byte* memory = nullptr;
  std::size_t size = 0;
  std::size_t capacity = 0;

  [[nodiscard]] static std::byte* allocate(std::size_t count, std::size_t stride) {
    std::size_t bytes = 0;
    if (__builtin_mul_overflow(count, stride, &bytes)) throw std::bad_array_new_length();
    return static_cast<std::byte*>(::operator new(bytes));
  }
};

/// Makes room for `more` further trivially copyable elements.
[[gnu::noinline]] inline void grow(RawList& list, std::size_t more, std::size_t stride) {
  std::size_t const least = list.size + more;
  if (least <= list.capacity) return;
  std::size_t const capacity = least < 2 * list.capacity ? 2 * list.capacity : least;
  std::byte* const memory = RawList::allocate(capacity, stride);
  if (list.size != 0) std::memcpy(memory, list.memory, list.size * stride);
  ::operator delete(list.memory);
  list.memory = memory;
  list.capacity = capacity;
}

/// Appends copies of a trivially copyable element.
[[gnu::noinline]] inline void append(RawList& list, std::size_t count, void const* value,
                                     std::size_t stride) {
  if (count == 0) return;
  if (count > list.capacity - list.size) grow(list, count, stride);
  std::byte* const to = list.memory + list.size * stride;
  std::size_t const bytes = count * stride;
  std::memcpy(to, value, stride);
  for (std::size_t done = stride; done < bytes; done *= 2)  // what is there already, once more
    std::memcpy(to + done, to, done < bytes - done ? done : bytes - done);
  list.size += count;
}

/// Replaces the contents by trivially copyable elements.
[[gnu::noinline]] inline void replace(RawList& list, void const* from, std::size_t count,
                                      std::size_t stride) {
  list.size = 0;
  grow(list, count, stride);
  if (count != 0) std::memcpy(list.memory, from, count * stride);
  list.size = count;
}

[[gnu::noinline]] inline void swap(RawList& a, RawList& b) noexcept { std::swap(a, b); }

}  // namespace detail

/// The part of std::vector that the engine needs: a translation unit with a pipeline compiles in
/// half the time.
template <class T> class List {
  static constexpr bool trivial =
      std::is_trivially_copyable_v<T> && std::is_trivially_destructible_v<T>;
  static_assert(alignof(T) <= __STDCPP_DEFAULT_NEW_ALIGNMENT__);

 public:
  using value_type = T;

  List() = default;
  // Delegates to List(), so that the elements made so far are destroyed if one throws.
  explicit List(std::size_t count) : List() { resize(count); }
  List(std::size_t count, T const& value) : List() { append(count, value); }
  List(std::initializer_list<T> values) : List() { assign(values.begin(), values.size()); }
  List(List const& other) : List() { assign(other.data(), other.size()); }
  List(List&& other) noexcept : raw_(std::exchange(other.raw_, {})) {}
  List& operator=(List const& other) {
    if (this != &other) assign(other.data(), other.size());
    return *this;
  }
  List& operator=(List&& other) noexcept {
    detail::swap(raw_, other.raw_);
    return *this;
  }
  ~List() {
    if constexpr (!std::is_trivially_destructible_v<T>) destroy(0);
    ::operator delete(raw_.memory);
  }

  [[nodiscard]] std::size_t size() const noexcept { return raw_.size; }
  [[nodiscard]] bool empty() const noexcept { return raw_.size == 0; }
  [[nodiscard]] T* data() noexcept { return reinterpret_cast<T*>(raw_.memory); }
  [[nodiscard]] T const* data() const noexcept { return reinterpret_cast<T const*>(raw_.memory); }
  [[nodiscard]] T* begin() noexcept { return reinterpret_cast<T*>(raw_.memory); }
  [[nodiscard]] T* end() noexcept { return reinterpret_cast<T*>(raw_.memory) + raw_.size; }
  [[nodiscard]] T const* begin() const noexcept { return reinterpret_cast<T const*>(raw_.memory); }
  [[nodiscard]] T const* end() const noexcept {
    return reinterpret_cast<T const*>(raw_.memory) + raw_.size;
  }
  /// Takes any integer, so that callers need not convert indices.
  template <std::integral I> [[nodiscard]] T& operator[](I i) noexcept {
    return reinterpret_cast<T*>(raw_.memory)[i];
  }
  template <std::integral I> [[nodiscard]] T const& operator[](I i) const noexcept {
    return reinterpret_cast<T const*>(raw_.memory)[i];
  }
  [[nodiscard]] T& front() noexcept { return data()[0]; }
  [[nodiscard]] T const& front() const noexcept { return data()[0]; }
  [[nodiscard]] T& back() noexcept { return data()[raw_.size - 1]; }
  [[nodiscard]] T const& back() const noexcept { return data()[raw_.size - 1]; }

  void reserve(std::size_t count) {
    if (count > raw_.size) grow(count - raw_.size);
  }
  void push_back(T value) {
    if constexpr (trivial)
      detail::append(raw_, 1, &value, sizeof(T));
    else
      emplace_back(std::move(value));
  }
  template <class... A> T& emplace_back(A&&... arguments) {
    if (raw_.size == raw_.capacity) grow(1);
    T* const object = ::new (raw_.memory + raw_.size * sizeof(T)) T(std::forward<A>(arguments)...);
    ++raw_.size;
    return *object;
  }
  void pop_back() noexcept { destroy(raw_.size - 1); }
  void clear() noexcept {
    if constexpr (!std::is_trivially_destructible_v<T>) destroy(0);
    raw_.size = 0;
  }
  void resize(std::size_t count) {
    if (count < raw_.size) return destroy(count);
    if constexpr (trivial && std::is_default_constructible_v<T>) {
      T const value{};
      detail::append(raw_, count - raw_.size, &value, sizeof(T));
    } else {
      grow(count - raw_.size);
      while (raw_.size < count) emplace_back();
    }
  }
  void assign(std::size_t count, T const& value) {
    destroy(0);
    append(count, value);
  }
  void assign(T const* from, std::size_t count) {
    if constexpr (trivial) {
      detail::replace(raw_, from, count, sizeof(T));
    } else {
      destroy(0);
      grow(count);
      for (std::size_t i = 0; i < count; ++i) emplace_back(from[i]);
    }
  }

  friend bool operator==(List const& a, List const& b) {
    if (a.size() != b.size()) return false;
    for (std::size_t i = 0; i < a.size(); ++i)
      if (!(a[i] == b[i])) return false;
    return true;
  }

 private:
  void append(std::size_t count, T const& value) {
    if constexpr (trivial) {
      detail::append(raw_, count, &value, sizeof(T));
    } else {
      grow(count);
      for (std::size_t i = 0; i < count; ++i) emplace_back(value);
    }
  }
  void grow(std::size_t more) {
    if constexpr (trivial) {
      detail::grow(raw_, more, sizeof(T));
    } else {
      std::size_t const least = raw_.size + more;
      if (least <= raw_.capacity) return;
      std::size_t const capacity = least < 2 * raw_.capacity ? 2 * raw_.capacity : least;
      std::byte* const memory = detail::RawList::allocate(capacity, sizeof(T));
      for (std::size_t i = 0; i < raw_.size; ++i) {
        ::new (memory + i * sizeof(T)) T(std::move((*this)[i]));
        (*this)[i].~T();
      }
      ::operator delete(raw_.memory);
      raw_.memory = memory;
      raw_.capacity = capacity;
    }
  }
  void destroy(std::size_t from) noexcept {
    if constexpr (!std::is_trivially_destructible_v<T>)
      for (std::size_t i = raw_.size; i > from; --i) (*this)[i - 1].~T();
    raw_.size = from;
  }

  detail::RawList raw_;
};

}  // namespace stagger
