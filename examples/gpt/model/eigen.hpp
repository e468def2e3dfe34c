// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Eigen views of the engine's memory, for the .cpp files here: no header includes this
/// one, so that Eigen is compiled with the library `gpt_model` alone, and with its flags.
///
/// All memory starts on a boundary of 64 bytes (tensors, parameters, scratch) and no view starts
/// elsewhere in one run than in another: Eigen's vectorised sums depend on the address, and the
/// bits of a result must not. Nothing is allocated: that target gives Eigen enough stack for the
/// blocks of its products.

#include <algorithm>
#include <cstddef>
#include <span>

#include <Eigen/Core>

#include "index.hpp"

namespace gpt {

template <class T> using Matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
template <class T> using Row = Eigen::Array<T, 1, Eigen::Dynamic>;

/// A matrix, or a part of one: the rows need not follow each other.
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
