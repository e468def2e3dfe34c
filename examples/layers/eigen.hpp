// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Eigen views of the engine's memory, for the .cpp files of layers. No header of a layer
/// includes this one, so that Eigen is compiled only in the libraries that link `example_eigen`,
/// with its flags.
///
/// Eigen's vectorised sums depend on the alignment of the data. All memory (tensors, parameters,
/// scratch) is aligned to 64 bytes, and views start at the same offsets in every run, so that
/// results have the same bits. Nothing is allocated: the target lets Eigen put the blocks of its
/// products on the stack.

#include <algorithm>
#include <cstddef>
#include <span>

#include <Eigen/Core>

#include "index.hpp"

namespace layers {

template <class T> using Matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
template <class T> using Row = Eigen::Array<T, 1, Eigen::Dynamic>;

/// A matrix or a block of one, with a stride between rows.
template <class T> using MatrixView = Eigen::Map<Matrix<T>, Eigen::Unaligned, Eigen::OuterStride<>>;
template <class T>
using ConstMatrixView = Eigen::Map<Matrix<T> const, Eigen::Unaligned, Eigen::OuterStride<>>;

template <class T> [[nodiscard]] MatrixView<T> view(T* data, Index rows, Index columns) {
  return {data, rows, columns, Eigen::OuterStride<>(columns)};
}
template <class T> [[nodiscard]] ConstMatrixView<T> view(T const* data, Index rows, Index columns) {
  return {data, rows, columns, Eigen::OuterStride<>(columns)};
}
template <class T> [[nodiscard]] Eigen::Map<Row<T>> row(T* data, Index columns) {
  return {data, columns};
}
template <class T> [[nodiscard]] Eigen::Map<Row<T> const> row(T const* data, Index columns) {
  return {data, columns};
}

/// sum += the sum of the rows of `matrix`, added from the first to the last.
template <class T> void add_column_sums(T const* matrix, Index rows, std::span<T> sum) {
  for (Index r = 0; r < rows; ++r) {
    T const* const from = matrix + r * count(sum.size());
    for (std::size_t c = 0; c < sum.size(); ++c) sum[c] += from[c];
  }
}

/// Writes `bias` to every row; a product is then added.
template <class T> void fill_rows(T* matrix, Index rows, std::span<T const> bias) {
  for (Index r = 0; r < rows; ++r)
    std::copy(bias.begin(), bias.end(), matrix + r * count(bias.size()));
}

}  // namespace layers
