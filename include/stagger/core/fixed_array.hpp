// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   An array whose length is given once; its elements never move.

#include <stagger/core/requirements.hpp>

#include <concepts>
#include <cstddef>
#include <utility>

namespace stagger {

/// As many default-constructed elements as it was made with. They need not be movable, and no code
/// is compiled that would move them.
template <class T> class FixedArray {
 public:
  FixedArray() = default;
  template <std::integral N>
  explicit FixedArray(N size)
      : items_(new T[static_cast<std::size_t>(size)]()), size_(static_cast<std::size_t>(size)) {}
  FixedArray(FixedArray&& other) noexcept
      : items_(std::exchange(other.items_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  FixedArray& operator=(FixedArray&& other) noexcept {
    delete[] items_;
    items_ = std::exchange(other.items_, nullptr);
    size_ = std::exchange(other.size_, 0);
    return *this;
  }
  ~FixedArray() { delete[] items_; }

  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] T* data() noexcept { return items_; }
  [[nodiscard]] T const* data() const noexcept { return items_; }
  [[nodiscard]] T* begin() noexcept { return items_; }
  [[nodiscard]] T* end() noexcept { return items_ + size_; }
  [[nodiscard]] T const* begin() const noexcept { return items_; }
  [[nodiscard]] T const* end() const noexcept { return items_ + size_; }
  /// Takes any integer, so that callers need not convert indices.
  template <std::integral I> [[nodiscard]] T& operator[](I i) noexcept { return items_[i]; }
  template <std::integral I> [[nodiscard]] T const& operator[](I i) const noexcept {
    return items_[i];
  }
  [[nodiscard]] T& front() noexcept { return items_[0]; }

 private:
  T* items_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace stagger
