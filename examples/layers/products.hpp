// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Products of matrices, compiled once for all layers, since each file that uses Eigen's
/// takes seconds longer to compile.

#include <type_traits>

#include "eigen.hpp"

namespace layers {

/// A factor of a product: a view, or its transpose.
template <class T> struct Operand {
  Operand(MatrixView<T> const& m) : view(m.data(), m.rows(), m.cols(), m.outerStride()) {}
  Operand(ConstMatrixView<T> const& m) : view(m) {}

  ConstMatrixView<T> view;
  bool turned = false;
};

template <class View> [[nodiscard]] auto transposed(View const& m) {
  Operand<typename View::Scalar> operand(m);
  operand.turned = true;
  return operand;
}

/// to = a * b
/// @pre  `to` shares no memory with a or b, and at most one of them is transposed
template <class T>
void multiply(std::type_identity_t<Operand<T>> const& a, std::type_identity_t<Operand<T>> const& b,
              MatrixView<T> to);

/// to += a * b
/// @pre  as for `multiply`
template <class T>
void add_product(std::type_identity_t<Operand<T>> const& a,
                 std::type_identity_t<Operand<T>> const& b, MatrixView<T> to);

}  // namespace layers
