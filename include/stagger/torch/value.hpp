// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The values that pass between modules of libtorch: tensors that the engine can size, split
///         by rows, compare and send.

#include <stagger/core/requirements.hpp>

#include <cstddef>
#include <cstdint>
#include <sstream>
#include <string>
#include <utility>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/InferenceMode.h>

#include <stagger/core/error.hpp>
#include <stagger/core/portable.hpp>

namespace stagger::torch {

namespace detail {

/// The first line of what libtorch says, without the places in its own source.
[[nodiscard]] [[gnu::cold]] inline std::string first_line(c10::Error const& error) {
  std::string const all = error.what_without_backtrace();
  return all.substr(0, all.find('\n'));
}

/// As libtorch prints it.
template <class T> [[nodiscard]] [[gnu::cold]] std::string in_words(T const& value) {
  std::ostringstream out;
  out << value;
  return std::move(out).str();
}

}  // namespace detail

/// An `at::Tensor` as an input, an output or a target. It is made from a tensor, whose memory it
/// shares, and is one again wherever libtorch asks for it; a copy has memory of its own.
///
///     sg::Batch<sg::torch::Value, sg::torch::Value> batch;
///     batch.inputs.push_back(x);       // x, y: at::Tensor
///     batch.targets.push_back(y);
///
/// Its rows are those of the tensor's first dimension. Its elements lie in one block, in any order
/// of the dimensions: a tensor with gaps, or one that repeats elements, is copied.
class Value {
 public:
  Value() = default;

  /// @throws Error  mismatch for a tensor that is not on the host, or that is sparse
  Value(at::Tensor tensor) : tensor_(std::move(tensor)) {  // NOLINT: a Value is a tensor
    if (!tensor_.defined()) return;
    if (!tensor_.is_cpu() || tensor_.layout() != at::kStrided) [[unlikely]]
      raise(Errc::mismatch, "a value is a tensor on ", detail::in_words(tensor_.device()),
            " of layout ", detail::in_words(tensor_.layout()),
            ", but stages work on strided tensors on the host; convert it with "
            "to(at::kCPU).to_dense()");
    if (tensor_.is_inference() || tensor_.is_conj() || tensor_.is_neg()) {
      c10::InferenceMode const off(false);
      tensor_ = tensor_.resolve_conj().resolve_neg().clone();
    }
    if (tensor_.requires_grad()) tensor_ = tensor_.detach();
    if (!tensor_.is_non_overlapping_and_dense()) tensor_ = tensor_.contiguous();
  }

  Value(Value const& other)
      : tensor_(other.tensor_.defined() ? other.tensor_.clone() : at::Tensor()) {}
  Value(Value&&) noexcept = default;
  Value& operator=(Value const& other) { return *this = Value(other); }
  Value& operator=(Value&&) noexcept = default;
  ~Value() = default;

  [[nodiscard]] at::Tensor const& tensor() const noexcept { return tensor_; }
  operator at::Tensor const&() const noexcept { return tensor_; }  // NOLINT: a Value is a tensor

  /// Its elements as bytes, in the order in which they lie in memory.
  [[nodiscard]] std::byte const* data() const {
    return tensor_.defined() ? static_cast<std::byte const*>(tensor_.const_data_ptr()) : nullptr;
  }
  [[nodiscard]] std::size_t size() const { return tensor_.defined() ? tensor_.nbytes() : 0; }
  [[nodiscard]] std::byte const* begin() const { return data(); }
  [[nodiscard]] std::byte const* end() const { return data() + size(); }

  /// Memory held, in bytes: that of the whole tensor of which this one is a view.
  [[nodiscard]] std::uint64_t bytes() const {
    return tensor_.defined() ? tensor_.storage().nbytes() : 0;
  }

  /// The first dimension; 0 for a tensor of none.
  [[nodiscard]] std::size_t rows() const {
    return tensor_.defined() && tensor_.dim() != 0 ? static_cast<std::uint64_t>(tensor_.size(0))
                                                   : 0;
  }
  /// Resizes to this many rows of the same shape as another value's rows; the contents are kept if
  /// nothing changes.
  void resize_rows(Value const& like, std::size_t rows) {
    at::Tensor const& shape = like.tensor_;
    if (!shape.defined() || shape.dim() == 0) return static_cast<void>(*this = like);
    auto sizes = shape.sizes().vec();
    sizes.front() = static_cast<std::int64_t>(rows);
    if (!tensor_.defined() || tensor_.scalar_type() != shape.scalar_type() ||
        tensor_.sizes() != sizes)
      tensor_ = at::empty(sizes, shape.options(), shape.suggest_memory_format());
  }
  /// Rows [at, at + count) become rows [first, first + count) of another value, of equal shape.
  void copy_rows(std::size_t at, Value const& from, std::size_t first, std::size_t count) {
    auto const length = static_cast<std::int64_t>(count);
    tensor_.narrow(0, static_cast<std::int64_t>(at), length)
        .copy_(from.tensor_.narrow(0, static_cast<std::int64_t>(first), length));
  }

  /// Writes type, extents, strides and elements.
  void write(ByteWriter& out) const {
    auto const dimensions = tensor_.defined() ? tensor_.dim() : -1;
    out.add(dimensions);
    if (dimensions < 0) return;
    out.add(tensor_.scalar_type());
    for (auto const& numbers : {tensor_.sizes(), tensor_.strides()})
      out.add(numbers.data(), numbers.size() * sizeof(std::int64_t));
    out.add(data(), size());
  }
  /// Reads what `write` has written.
  void read(ByteReader& in) {
    auto const dimensions = in.take<std::int64_t>();
    if (dimensions < 0) return tensor_.reset();
    auto const type = in.take<at::ScalarType>();
    at::DimVector sizes(static_cast<unsigned>(dimensions));
    at::DimVector strides(static_cast<unsigned>(dimensions));
    for (auto* numbers : {&sizes, &strides})
      in.take(numbers->data(), numbers->size() * sizeof(std::int64_t));
    if (!tensor_.defined() || tensor_.scalar_type() != type ||
        tensor_.sizes() != at::IntArrayRef(sizes) || tensor_.strides() != at::IntArrayRef(strides))
      tensor_ = at::empty_strided(sizes, strides, type);
    in.take(tensor_.mutable_data_ptr(), size());
  }

 private:
  at::Tensor tensor_;
};

}  // namespace stagger::torch

namespace stagger {

template <> struct Portable<torch::Value> {
  static constexpr bool exists = true;
  static void write(ByteWriter& out, torch::Value const& value) { value.write(out); }
  static void read(ByteReader& in, torch::Value& value) { value.read(in); }
};

}  // namespace stagger
