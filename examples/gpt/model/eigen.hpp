// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Eigen views of the engine's memory.
///
/// All memory starts on a boundary of 64 bytes (tensors, parameters, scratch) and no view starts
/// elsewhere in one run than in another: Eigen's vectorised sums depend on the address, and the
/// bits of a result must not. Products go through `noalias()`, so that nothing is allocated; the
/// target `gpt_model` gives Eigen enough stack for its blocks.

#include <cstddef>
#include <span>

#include <Eigen/Core>

#include <stagger/core/tensor.hpp>

namespace gpt {

using Eigen::Index;

template <class T> using Matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
template <class T> using Row = Eigen::Array<T, 1, Eigen::Dynamic>;

template <class T> using MatrixView = Eigen::Map<Matrix<T>>;
template <class T> using ConstMatrixView = Eigen::Map<Matrix<T> const>;

/// Rows that do not follow each other: the columns of one attention head.
template <class T>
using StridedView = Eigen::Map<Matrix<T>, Eigen::Unaligned, Eigen::OuterStride<>>;

template <class T> [[nodiscard]] MatrixView<T> view(T* data, Index rows, Index columns) {
  return {data, rows, columns};
}
template <class T> [[nodiscard]] ConstMatrixView<T> view(T const* data, Index rows, Index columns) {
  return {data, rows, columns};
}
template <class T> [[nodiscard]] Eigen::Map<Row<T>> row(T* data, Index columns) {
  return {data, columns};
}
template <class T> [[nodiscard]] Eigen::Map<Row<T> const> row(T const* data, Index columns) {
  return {data, columns};
}

/// A count as Eigen wants it, and back.
[[nodiscard]] constexpr Index count(std::size_t n) noexcept { return static_cast<Index>(n); }
[[nodiscard]] constexpr std::size_t count(Index n) noexcept { return static_cast<std::size_t>(n); }

/// sum += the sum of the rows of `matrix`, from the first row to the last.
template <class T> void add_column_sums(T const* matrix, Index rows, std::span<T> sum) {
  for (Index r = 0; r < rows; ++r) {
    T const* const from = matrix + r * count(sum.size());
    for (std::size_t c = 0; c < sum.size(); ++c) sum[c] += from[c];
  }
}

/// Writes `bias` into every row: a product is then added to it.
template <class T> void fill_rows(T* matrix, Index rows, std::span<T const> bias) {
  for (Index r = 0; r < rows; ++r)
    std::copy(bias.begin(), bias.end(), matrix + r * count(bias.size()));
}

}  // namespace gpt
