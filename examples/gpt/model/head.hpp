// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The last layer: normalisation and the logits of the next byte.

#include <cmath>
#include <tuple>

#include <stagger/model/context.hpp>

#include "embedding.hpp"
#include "norm.hpp"

namespace gpt {

/// y = norm(x) * weight.
template <class T> class Head {
 public:
  using Input = stagger::Tensor<T>;   ///< [sequences][length][width]
  using Output = stagger::Tensor<T>;  ///< [sequences][length][256]

  struct Saved {
    typename Norm<T>::Saved norm;
    [[nodiscard]] std::uint64_t bytes() const noexcept { return norm.bytes(); }
  };

  Head(Index width, Random& random)
      : width_(width),
        norm_("norm", width),
        weight_(normal_parameter<T>("weight", random, count(width * classes),
                                    0.5 / std::sqrt(static_cast<double>(width)))) {}

  auto parameters() { return std::tie(norm_.gain, norm_.bias, weight_); }

  void forward(stagger::Context& context, Input const& x, Output& y, Saved& saved) const {
    Index const rows = count(x.extent(0) * x.extent(1));
    T* const normal = context.scratch<T>(count(rows * width_)).data();
    norm_.forward(context, x.data(), normal, rows, saved.norm);
    y.resize({x.extent(0), x.extent(1), count(classes)});
    view(y.data(), rows, classes).noalias() =
        view(normal, rows, width_) * view(context[weight_].data(), width_, classes);
  }

  void backward_input(stagger::Context& context, Input const& x, Output const& dy, Input& dx,
                      Saved& saved) const {
    Index const rows = count(x.extent(0) * x.extent(1));
    T* const normal = context.scratch<T>(count(rows * width_)).data();
    view(normal, rows, width_).noalias() =
        view(dy.data(), rows, classes) * view(context[weight_].data(), width_, classes).transpose();
    dx.resize_like(x);
    norm_.backward(context, normal, nullptr, dx.data(), rows, saved.norm);
  }

  void backward_weight(stagger::Context& context, Input const& x, Output const& dy,
                       Saved& saved) const {
    Index const rows = count(x.extent(0) * x.extent(1));
    T* const normal = context.scratch<T>(count(rows * width_)).data();
    norm_.output(context, saved.norm, normal, rows);
    view(context.gradient(weight_).data(), width_, classes).noalias() +=
        view(normal, rows, width_).transpose() * view(dy.data(), rows, classes);
    norm_.add_gradients(context, saved.norm);
  }

 private:
  Index width_;
  Norm<T> norm_;
  stagger::Parameter<T> weight_;  // [width][classes]
};

}  // namespace gpt
