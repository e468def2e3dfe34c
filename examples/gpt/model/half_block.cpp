// SPDX-License-Identifier: Apache-2.0
#include "half_block.hpp"

#include <algorithm>

namespace gpt {

template <class T>
void NormBeside<T>::forward(stagger::Context& context, Input const& x, Output& y,
                            Saved& saved) const {
  std::size_t const width = norm_.gain.size();
  std::size_t const rows = x.size() / width;
  y.resize({x.extent(0), x.extent(1), 2 * width});
  for (std::size_t r = 0; r < rows; ++r)
    std::copy_n(x.data() + r * width, width, y.data() + 2 * r * width);
  norm_.forward(context, x.data(), {y.data() + width, count(2 * width)}, count(rows), saved);
}

template <class T>
void NormBeside<T>::backward_input(stagger::Context& context, Input const& x, Output const& dy,
                                   Input& dx, Saved& saved) const {
  std::size_t const width = norm_.gain.size();
  Index const stride = count(2 * width);
  dx.resize_like(x);
  norm_.backward(context, {dy.data() + width, stride}, {dy.data(), stride}, dx.data(),
                 count(x.size() / width), saved);
}

template class NormBeside<float>;
template class NormBeside<double>;

template <class T>
void HalfBlock<T>::forward(stagger::Context& context, Input const& x, Output& y,
                           Saved& saved) const {
  Sequences const s = sequences_of(x);
  T* const normal = context.scratch<T>(x.size()).data();
  Index const width = count(norm_.gain.size());
  norm_.forward(context, x.data(), {normal, width}, s.rows(), saved.norm);
  y.resize_like(x);
  projections_.forward(context, s, {normal, width}, {x.data(), width}, y.data(), saved.projections);
}

template <class T>
void HalfBlock<T>::backward_input(stagger::Context& context, Input const& x, Output const& dy,
                                  Input& dx, Saved& saved) const {
  Sequences const s = sequences_of(x);
  T* const dnormal = context.scratch<T>(x.size()).data();
  Index const width = count(norm_.gain.size());
  projections_.backward_input(context, s, dy.data(), {dnormal, width}, saved.projections);
  dx.resize_like(x);
  norm_.backward(context, {dnormal, width}, {dy.data(), width}, dx.data(), s.rows(), saved.norm);
}

template <class T>
void HalfBlock<T>::backward_weight(stagger::Context& context, Input const& x, Output const& dy,
                                   Saved& saved) const {
  Sequences const s = sequences_of(x);
  T* const normal = context.scratch<T>(x.size()).data();
  Index const width = count(norm_.gain.size());
  norm_.output(context, saved.norm, {normal, width}, s.rows());
  projections_.backward_weight(context, s, {normal, width}, dy.data(), saved.projections);
  norm_.add_gradients(context, saved.norm);
}

template class HalfBlock<float>;
template class HalfBlock<double>;

}  // namespace gpt
