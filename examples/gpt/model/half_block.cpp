// SPDX-License-Identifier: Apache-2.0
#include "half_block.hpp"

namespace gpt {

namespace {

template <class T> Sequences sequences_of(stagger::Tensor<T> const& x) {
  return {count(x.extent(0)), count(x.extent(1))};
}

}  // namespace

template <class T>
void HalfBlock<T>::forward(stagger::Context& context, Input const& x, Output& y,
                           Saved& saved) const {
  Sequences const s = sequences_of(x);
  T* const normal = context.scratch<T>(x.size()).data();
  norm_.forward(context, x.data(), normal, s.rows(), saved.norm);
  y.resize_like(x);
  projections_.forward(context, s, normal, x.data(), y.data(), saved.projections);
}

template <class T>
void HalfBlock<T>::backward_input(stagger::Context& context, Input const& x, Output const& dy,
                                  Input& dx, Saved& saved) const {
  Sequences const s = sequences_of(x);
  T* const dnormal = context.scratch<T>(x.size()).data();
  projections_.backward_input(context, s, dy.data(), dnormal, saved.projections);
  dx.resize_like(x);
  norm_.backward(context, dnormal, dy.data(), dx.data(), s.rows(), saved.norm);
}

template <class T>
void HalfBlock<T>::backward_weight(stagger::Context& context, Input const& x, Output const& dy,
                                   Saved& saved) const {
  Sequences const s = sequences_of(x);
  T* const normal = context.scratch<T>(x.size()).data();
  norm_.output(context, saved.norm, normal, s.rows());
  projections_.backward_weight(context, s, normal, dy.data(), saved.projections);
  norm_.add_gradients(context, saved.norm);
}

template class HalfBlock<float>;
template class HalfBlock<double>;

}  // namespace gpt
