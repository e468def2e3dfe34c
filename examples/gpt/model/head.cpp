// SPDX-License-Identifier: Apache-2.0
#include "head.hpp"

#include <cmath>

#include "layers/products.hpp"

namespace gpt {

template <class T>
Head<T>::Head(Index width, Random& random)
    : width_(width),
      norm_("norm", width),
      weight_(normal_parameter<T>("weight", random, count(width * classes),
                                  0.5 / std::sqrt(static_cast<double>(width)))) {}

template <class T>
void Head<T>::forward(stagger::Context& context, Input const& x, Output& y, Saved& saved) const {
  Index const rows = count(x.extent(0) * x.extent(1));
  T* const normal = context.scratch<T>(count(rows * width_)).data();
  norm_.forward(context, x.data(), {normal, width_}, rows, saved.norm);
  y.resize({x.extent(0), x.extent(1), count(classes)});
  multiply(view(normal, rows, width_), view(context[weight_].data(), width_, classes),
           view(y.data(), rows, classes));
}

template <class T>
void Head<T>::backward_input(stagger::Context& context, Input const& x, Output const& dy, Input& dx,
                             Saved& saved) const {
  Index const rows = count(x.extent(0) * x.extent(1));
  T* const normal = context.scratch<T>(count(rows * width_)).data();
  multiply(view(dy.data(), rows, classes),
           transposed(view(context[weight_].data(), width_, classes)), view(normal, rows, width_));
  dx.resize_like(x);
  norm_.backward(context, {normal, width_}, {}, dx.data(), rows, saved.norm);
}

template <class T>
void Head<T>::backward_weight(stagger::Context& context, Input const& x, Output const& dy,
                              Saved& saved) const {
  Index const rows = count(x.extent(0) * x.extent(1));
  T* const normal = context.scratch<T>(count(rows * width_)).data();
  norm_.output(context, saved.norm, {normal, width_}, rows);
  add_product(transposed(view(normal, rows, width_)), view(dy.data(), rows, classes),
              view(context.gradient(weight_).data(), width_, classes));
  norm_.add_gradients(context, saved.norm);
}

template class Head<float>;
template class Head<double>;

}  // namespace gpt
