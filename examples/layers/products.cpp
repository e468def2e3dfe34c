// SPDX-License-Identifier: Apache-2.0
#include "products.hpp"

namespace layers {

// Without `noalias()` Eigen would allocate a temporary for the result.

template <class T>
void multiply(std::type_identity_t<Operand<T>> const& a, std::type_identity_t<Operand<T>> const& b,
              MatrixView<T> to) {
  if (a.turned)
    to.noalias() = a.view.transpose() * b.view;
  else if (b.turned)
    to.noalias() = a.view * b.view.transpose();
  else
    to.noalias() = a.view * b.view;
}

template <class T>
void add_product(std::type_identity_t<Operand<T>> const& a,
                 std::type_identity_t<Operand<T>> const& b, MatrixView<T> to) {
  if (a.turned)
    to.noalias() += a.view.transpose() * b.view;
  else if (b.turned)
    to.noalias() += a.view * b.view.transpose();
  else
    to.noalias() += a.view * b.view;
}

template void multiply(Operand<float> const&, Operand<float> const&, MatrixView<float>);
template void multiply(Operand<double> const&, Operand<double> const&, MatrixView<double>);
template void add_product(Operand<float> const&, Operand<float> const&, MatrixView<float>);
template void add_product(Operand<double> const&, Operand<double> const&, MatrixView<double>);

}  // namespace layers
