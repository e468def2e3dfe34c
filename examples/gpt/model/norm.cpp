// SPDX-License-Identifier: Apache-2.0
#include "norm.hpp"

#include <cmath>
#include <vector>

#include "layers/eigen.hpp"

namespace gpt {

template <class T>
Norm<T>::Norm(std::string const& name, Index width)
    : gain(name + ".gain", std::vector<T>(count(width), T{1}), false),
      bias(name + ".bias", std::vector<T>(count(width), T{0}), false) {}

template <class T>
void Norm<T>::forward(stagger::Context& context, T const* x, Rows<T> y, Index rows,
                      Saved& saved) const {
  Index const width = count(gain.size());
  saved.normal.resize({count(rows), count(width)});
  saved.scale.resize({count(rows)});
  for (Index r = 0; r < rows; ++r) {
    auto const from = row(x + r * width, width);
    auto normal = row(saved.normal.data() + r * width, width);
    normal = from - from.sum() / static_cast<T>(width);
    T const variance = normal.square().sum() / static_cast<T>(width);
    T const scale = T{1} / std::sqrt(variance + static_cast<T>(1e-5));
    saved.scale[count(r)] = scale;
    normal *= scale;
  }
  output(context, saved, y, rows);
}

template <class T>
void Norm<T>::output(stagger::Context& context, Saved const& saved, Rows<T> y, Index rows) const {
  Index const width = count(gain.size());
  T const* const g = context[gain].data();
  T const* const b = context[bias].data();
  T const* const normal = saved.normal.data();
  for (Index r = 0; r < rows; ++r)
    for (Index c = 0; c < width; ++c)
      y.data[r * y.stride + c] = normal[r * width + c] * g[c] + b[c];
}

template <class T>
void Norm<T>::backward(stagger::Context& context, Rows<T const> dy, Rows<T const> residual, T* dx,
                       Index rows, Saved& saved) const {
  Index const width = count(gain.size());
  saved.gain_gradient.resize({count(width)});
  saved.bias_gradient.resize({count(width)});
  saved.gain_gradient.fill(T{0});
  saved.bias_gradient.fill(T{0});
  auto gain_gradient = row(saved.gain_gradient.data(), width);
  auto bias_gradient = row(saved.bias_gradient.data(), width);
  auto const g = row(context[gain].data(), width);
  for (Index r = 0; r < rows; ++r) {
    auto const from = row(dy.data + r * dy.stride, width);
    auto const normal = row(static_cast<Saved const&>(saved).normal.data() + r * width, width);
    auto to = row(dx + r * width, width);
    gain_gradient += from * normal;
    bias_gradient += from;
    to = from * g;
    T const mean = to.sum() / static_cast<T>(width);
    T const slope = (to * normal).sum() / static_cast<T>(width);
    T const scale = saved.scale[count(r)];
    if (residual.data == nullptr)
      to = (to - mean - normal * slope) * scale;
    else
      to = row(residual.data + r * residual.stride, width) + (to - mean - normal * slope) * scale;
  }
}

template <class T>
void Norm<T>::add_gradients(stagger::Context& context, Saved const& saved) const {
  Index const width = count(gain.size());
  row(context.gradient(gain).data(), width) += row(saved.gain_gradient.data(), width);
  row(context.gradient(bias).data(), width) += row(saved.bias_gradient.data(), width);
}

template class Norm<float>;
template class Norm<double>;

}  // namespace gpt
