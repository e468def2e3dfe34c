// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A tensor in device memory that keeps its capacity, for the values between stages on a
///         GPU.

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <new>
#include <span>
#include <type_traits>
#include <utility>

#include <stagger/core/error.hpp>
#include <stagger/core/index_range.hpp>
#include <stagger/core/tensor.hpp>
#include <stagger/cuda/gradient_kernels.hpp>
#include <stagger/cuda/memory.hpp>

namespace stagger::cuda {

/// A dense row-major array of up to four extents on the device. Within a stage its memory comes
/// from the rank's pool, in the order of the rank's stream; elsewhere, from the device directly.
///
/// @tparam T  trivially copyable element, also a half-precision type
template <class T = float> class Tensor : public stagger::detail::TensorShape {
  static_assert(std::is_trivially_copyable_v<T>,
                "stagger: a Tensor holds trivially copyable elements");

 public:
  Tensor() = default;
  /// @shape extents  [1 to 4 counts], outermost first
  Tensor(std::initializer_list<std::size_t> extents) { resize(extents); }
  /// Copies on the current stream.
  Tensor(Tensor const& other) : TensorShape() { *this = other; }
  Tensor(Tensor&& other) noexcept { swap(other); }
  Tensor& operator=(Tensor const& other) {
    if (this == &other) return *this;
    take(other);
    if (!empty())
      check(cudaMemcpyAsync(data_, other.data_, size() * sizeof(T), cudaMemcpyDeviceToDevice,
                            stream()),
            "copy a tensor");
    return *this;
  }
  Tensor& operator=(Tensor&& other) noexcept {
    swap(other);
    return *this;
  }
  ~Tensor() { release(); }

  /// Sets the extents; allocates only if more elements are needed than ever before. Contents are
  /// then unspecified.
  /// @throws Error  if there is no such memory, or for more than 4 extents; the tensor is then as
  ///                before
  void resize(std::initializer_list<std::size_t> extents) { take(TensorShape(extents)); }
  void resize_like(TensorShape const& other) { take(other); }

  /// Enqueues a copy from or to host memory of `size()` elements, which must stay valid until it is
  /// done.
  void upload(std::span<T const> from) {
    copy(data_, from.data(), from.size(), cudaMemcpyHostToDevice);
  }
  void download(std::span<T> to) const {
    copy(to.data(), data_, to.size(), cudaMemcpyDeviceToHost);
  }

  [[nodiscard]] T* data() noexcept { return data_; }
  [[nodiscard]] T const* data() const noexcept { return data_; }
  // Its rows: replicas of a stage share a microbatch by them.
  static constexpr bool rows_on_stream = true;  ///< copy_rows is enqueued on the current stream
  /// Resizes the tensor to `rows` rows of the same shape as those of `like`. Their contents are
  /// unspecified then.
  /// @throws Error  as resize()
  void resize_rows(Tensor const& like, std::size_t rows) { take(like.with_rows(rows)); }
  /// Rows [first, first + count) of another tensor become rows [at, at + count), on the current
  /// stream.
  void copy_rows(std::size_t at, Tensor const& from, std::size_t first, std::size_t count) {
    if (count == 0 || empty()) return;
    std::size_t const each = row_size();
    check(cudaMemcpyAsync(data_ + at * each, from.data_ + first * each, count * each * sizeof(T),
                          cudaMemcpyDeviceToDevice, stream()),
          "copy rows of a tensor");
  }
  // Its columns, the elements of a row: groups of ranks share layers by them.
  static constexpr bool columns_on_stream = true;  ///< both functions below enqueue their work
  [[nodiscard]] std::size_t columns() const noexcept { return row_size(); }
  /// Resizes the tensor to a block's rows and columns; with the columns of `like`, to its shape.
  /// Their contents are unspecified then.
  /// @throws Error  as resize()
  void resize_block(Tensor const& like, stagger::Block block) {
    if (block.columns == like.columns())
      resize_rows(like, block.rows);
    else
      resize({block.rows, block.columns});
  }
  /// Copies a block of another tensor to the row and column `at`, on the current stream.
  /// @param first  the row and column at which it begins there
  void copy_block(stagger::Block at, Tensor const& from, stagger::Block first,
                  stagger::Block size) {
    if (size.rows == 0 || size.columns == 0) return;
    if (size.columns == columns() && size.columns == from.columns())
      return copy_rows(at.rows, from, first.rows, size.rows);
    check(cudaMemcpy2DAsync(at_block(at), columns() * sizeof(T), from.at_block(first),
                            from.columns() * sizeof(T), size.columns * sizeof(T), size.rows,
                            cudaMemcpyDeviceToDevice, stream()),
          "copy columns of a tensor");
  }
  /// Adds it, element by element. Called by an engine, whose `Gpus::kernels` do it.
  /// @throws Error  bad_configuration without ParameterKernels::add_block
  void add_block(stagger::Block at, Tensor const& from, stagger::Block first, stagger::Block size)
    requires std::same_as<T, float> || std::same_as<T, double>
  {
    auto const* const kernels =
        detail::place.step == nullptr ? nullptr : detail::place.step->kernels;
    if (kernels == nullptr || kernels->add_block == nullptr)
      raise(Errc::bad_configuration,
            "a group of ranks adds up columns of a cuda::Tensor, which needs a kernel; give "
            "Gpus::kernels an add_block, as cuda::parameter_kernels have");
    if (size.rows == 0 || size.columns == 0) return;
    constexpr ElementType type = std::same_as<T, float> ? ElementType::f32 : ElementType::f64;
    check(kernels->add_block(type,
                             {at_block(at), from.at_block(first), columns(), from.columns(),
                              size.rows, size.columns},
                             stream()),
          "add columns of a tensor");
  }

  /// Memory held, in bytes.
  [[nodiscard]] std::uint64_t bytes() const noexcept { return capacity_ * sizeof(T); }

 private:
  [[nodiscard]] T* at_block(stagger::Block at) const noexcept {
    return data_ + at.rows * row_size() + at.columns;
  }
  void swap(Tensor& other) noexcept {
    std::swap(pool_, other.pool_);
    std::swap(data_, other.data_);
    std::swap(capacity_, other.capacity_);
    std::swap<TensorShape>(*this, other);
  }

  void take(TensorShape const& shape) {
    reserve(shape.size());
    static_cast<TensorShape&>(*this) = shape;
  }
  void reserve(std::size_t count) {
    if (count <= capacity_) return;
    if (count > ~std::size_t{0} / sizeof(T)) throw std::bad_array_new_length();
    void* memory = nullptr;
    auto const* const pool = detail::place.pool;
    if (pool != nullptr) {
      memory = (*pool)->take(count * sizeof(T), stream());
    } else if (auto const result = cudaMalloc(&memory, count * sizeof(T)); result != cudaSuccess) {
      Pool::refuse(result, count * sizeof(T));
    }
    release();
    pool_ = pool != nullptr ? *pool : nullptr;
    data_ = static_cast<T*>(memory);
    capacity_ = count;
  }

  void release() noexcept {
    if (data_ == nullptr) return;
    if (pool_)
      pool_->give_back(data_, detail::place.pool != nullptr ? stream() : pool_->own_stream());
    else
      static_cast<void>(cudaFree(data_));
    pool_.reset();
    data_ = nullptr;
    capacity_ = 0;
  }

  void copy(void* to, void const* from, std::size_t count, cudaMemcpyKind kind) const {
    if (count != size())
      raise(Errc::mismatch, "a tensor of ", size(), " elements was given host memory for ", count,
            "; give as much as it has");
    if (count != 0)
      check(cudaMemcpyAsync(to, from, count * sizeof(T), kind, stream()), "copy a tensor");
  }

  std::shared_ptr<Pool> pool_;
  T* data_ = nullptr;
  std::size_t capacity_ = 0;
};

}  // namespace stagger::cuda
