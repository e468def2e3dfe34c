// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Tensors on the host: aligned memory that keeps its capacity.

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <new>
#include <span>
#include <type_traits>
#include <utility>

#include <stagger/core/alignment.hpp>
#include <stagger/core/basic_algorithm.hpp>
#include <stagger/core/error.hpp>

namespace stagger {

namespace detail {
[[noreturn]] [[gnu::cold]] [[gnu::noinline]] inline void refuse_extents(std::size_t count) {
  raise(Errc::bad_configuration, "a Tensor of ", count,
        " extents cannot be made; give at most 4, for instance by merging the last ones");
}

/// The extents of a tensor, and its number of elements.
class TensorShape {
 public:
  TensorShape() = default;
  /// @throws Error                      bad_configuration for more than 4 extents
  /// @throws std::bad_array_new_length  for more elements than can be counted
  explicit TensorShape(std::initializer_list<std::size_t> extents)
      : size_(extents.size() == 0 ? 0 : 1) {
    if (extents.size() > extents_.size()) refuse_extents(extents.size());
    std::copy(extents.begin(), extents.end(), extents_.begin());
    for (std::size_t const extent : extents)
      if (__builtin_mul_overflow(size_, extent, &size_)) throw std::bad_array_new_length();
  }

  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] bool empty() const noexcept { return size_ == 0; }
  /// Count along one dimension; 0 past the last one.
  [[nodiscard]] std::size_t extent(std::size_t dimension) const noexcept {
    return dimension < extents_.size() ? extents_[dimension] : 0;
  }
  [[nodiscard]] std::array<std::size_t, 4> const& extents() const noexcept { return extents_; }
  /// The first extent is the number of rows.
  [[nodiscard]] std::size_t rows() const noexcept { return extents_[0]; }

 protected:
  [[nodiscard]] std::size_t row_size() const noexcept {
    return size_ / (extents_[0] == 0 ? 1 : extents_[0]);
  }
  [[nodiscard]] TensorShape with_rows(std::size_t rows) const noexcept {
    TensorShape other = *this;
    other.extents_[0] = rows;
    other.size_ = row_size() * rows;
    return other;
  }

 private:
  std::array<std::size_t, 4> extents_{};
  std::size_t size_ = 0;
};

}  // namespace detail

/// A dense row-major array of up to four extents, which keeps its memory until it is destroyed.
///
/// A slot of the engine serves many microbatches, also of unequal sizes: `resize` to a size that is
/// not larger than an earlier one does not allocate. After it has grown, its contents are
/// unspecified.
///
/// @tparam T  trivially copyable element, `float` by default
template <class T = float> class Tensor : public detail::TensorShape {
  static_assert(std::is_trivially_copyable_v<T>,
                "stagger: a Tensor holds trivially copyable elements");

 public:
  Tensor() = default;

  /// @shape extents  [1 to 4 counts], outermost first
  Tensor(std::initializer_list<std::size_t> extents) { resize(extents); }

  /// A tensor of one extent with these elements.
  [[nodiscard]] static Tensor of(std::initializer_list<T> values) {
    Tensor tensor{values.size()};
    std::copy(values.begin(), values.end(), tensor.data());
    return tensor;
  }

  Tensor(Tensor const& other) : TensorShape() { *this = other; }
  Tensor(Tensor&& other) noexcept
      : TensorShape(other),
        memory_(std::move(other.memory_)),
        capacity_(std::exchange(other.capacity_, 0)) {
    other.shape() = {};
  }
  Tensor& operator=(Tensor const& other) {
    if (this != &other) {
      take(other);
      std::copy(other.data(), other.data() + size(), data());
    }
    return *this;
  }
  Tensor& operator=(Tensor&& other) noexcept {
    memory_ = std::move(other.memory_);
    capacity_ = std::exchange(other.capacity_, 0);
    shape() = std::exchange(other.shape(), {});
    return *this;
  }
  ~Tensor() = default;

  /// Sets the extents; allocates only if more elements are needed than ever before.
  /// @throws std::bad_alloc  if there is no such memory; the tensor is then as before
  /// @throws Error  bad_configuration for more than 4 extents
  void resize(std::initializer_list<std::size_t> extents) { take(TensorShape(extents)); }

  /// Takes the extents of another tensor.
  void resize_like(TensorShape const& other) { take(other); }

  /// Resizes to this many rows of the same shape as another tensor's rows.
  void resize_rows(Tensor const& like, std::size_t rows) { take(like.with_rows(rows)); }
  /// Rows [at, at + count) become rows [first, first + count) of another tensor, of equal shape.
  void copy_rows(std::size_t at, Tensor const& from, std::size_t first,
                 std::size_t count) noexcept {
    std::size_t const length = row_size();
    T const* const rows = from.data() + first * length;
    std::copy(rows, rows + count * length, data() + at * length);
  }

  void fill(T value) noexcept { std::fill_n(data(), size(), value); }

  [[nodiscard]] T* data() noexcept { return static_cast<T*>(memory_.get()); }
  [[nodiscard]] T const* data() const noexcept { return static_cast<T const*>(memory_.get()); }

  /// Memory held, in bytes.
  [[nodiscard]] std::uint64_t bytes() const noexcept { return capacity_ * sizeof(T); }

  [[nodiscard]] T& operator[](std::size_t i) noexcept { return data()[i]; }
  [[nodiscard]] T const& operator[](std::size_t i) const noexcept { return data()[i]; }
  [[nodiscard]] T* begin() noexcept { return data(); }
  [[nodiscard]] T* end() noexcept { return data() + size(); }
  [[nodiscard]] T const* begin() const noexcept { return data(); }
  [[nodiscard]] T const* end() const noexcept { return data() + size(); }

 private:
  [[nodiscard]] TensorShape& shape() noexcept { return *this; }
  void take(TensorShape const& wanted) {
    if (wanted.size() > capacity_) {
      std::size_t const bytes = detail::aligned_bytes(wanted.size(), sizeof(T));
      memory_ = detail::aligned_memory(bytes);
      capacity_ = bytes / sizeof(T);
    }
    shape() = wanted;
  }

  detail::AlignedMemory memory_;
  std::size_t capacity_ = 0;
};

}  // namespace stagger
