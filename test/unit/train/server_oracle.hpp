// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A parameter server that takes one step after the other, in plain loops.

#include <cmath>
#include <cstddef>
#include <vector>

#include "plain_layers.hpp"

namespace plain_layers {

inline constexpr int layers = 4;  // of every worker's model

inline std::vector<Numbers> first_weights() {
  std::vector<Numbers> w;
  for (int l = 0; l < layers; ++l) w.push_back(initial(l));
  return w;
}

/// The gradients of a minibatch of several microbatches, and its loss.
inline std::vector<Numbers> gradients(std::vector<Numbers> const& w, Batch const& batch,
                                      double& loss) {
  std::vector<Numbers> sum(layers, Numbers(width * width + width));
  double const terms = static_cast<double>(width * batch.inputs.size());
  loss = 0;
  for (std::size_t m = 0; m < batch.inputs.size(); ++m) {
    std::vector<Numbers> value{batch.inputs[m]};
    for (std::size_t l = 0; l < layers; ++l) {
      value.emplace_back();
      forward(w[l], value[l], value[l + 1]);
    }
    sg::Context context;
    Numbers dy;
    loss += Loss{}.value_and_gradient(context, value.back(), batch.targets[m], 1.0 / terms, dy);
    for (std::size_t l = layers; l-- > 0;) {
      Numbers dx;
      backward(w[l], value[l], value[l + 1], dy, dx, sum[l].data());
      dy = dx;
    }
  }
  loss *= 1.0 / terms;
  return sum;
}
inline std::vector<Numbers> gradients(std::vector<Numbers> const& w, Batch const& batch) {
  double loss = 0;
  return gradients(w, batch, loss);
}

inline std::vector<Numbers> scaled(std::vector<Numbers> gradient, float by) {
  for (Numbers& layer : gradient)
    for (float& g : layer) g *= by;
  return gradient;
}

/// 2-norm of all gradients of a worker.
inline double norm_of(std::vector<Numbers> const& gradient) {
  double sum = 0;
  for (Numbers const& layer : gradient) {
    double of_layer = 0;
    for (float const g : layer) of_layer += static_cast<double>(g) * static_cast<double>(g);
    sum += of_layer;
  }
  return std::sqrt(sum);
}
/// The factor that scales them down to a norm. @param clip  0: any
inline double clip_scale(std::vector<Numbers> const& gradient, double clip) {
  double const norm = norm_of(gradient);
  return clip != 0 && norm > clip ? clip / norm : 1;
}

/// The server of the oracle: weights, the optimizer and its state.
template <class Optimizer> struct OracleServer {
  Optimizer optimizer;
  std::vector<Numbers> w = first_weights();
  std::vector<Numbers> first{layers, Numbers(width* width + width)};
  std::vector<Numbers> second = first;
  int steps = 0;
  void step(std::vector<Numbers> gradient) {
    ++steps;
    for (std::size_t l = 0; l < layers; ++l) {
      sg::OptimizerView<float> view;
      view.value = view.next = w[l].data();
      view.gradient = gradient[l].data();
      view.state = {first[l].data(), second[l].data()};
      view.size = w[l].size();
      view.rows = matrix_rows;
      optimizer.update(view, 1, steps);
    }
  }
};

}  // namespace plain_layers
