// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The chain of layers: a VGG for images of 32x32 pixels, and a linear model beside it.

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include <stagger/core/random.hpp>
#include <stagger/model/sequential.hpp>
#include <stagger/partition/split_plan.hpp>

#include "convolution.hpp"
#include "dense.hpp"
#include "max_pool.hpp"
#include "sizes.hpp"

namespace vgg {

/// Sizes of a model.
struct ModelShape {
  Index width = 8;        ///< channels of the first convolution; 64 is the published network
  double dropout = 0.5;   ///< rate behind the first two dense layers
  Minibatch minibatch{};  ///< of every training step
};

/// Thirteen layers: seven convolutions with pooling behind the second, fourth and seventh, and
/// three dense layers.
template <class T>
using Model =
    stagger::Sequential<std::vector<Convolution<T>>, MaxPool<T>, std::vector<Convolution<T>>,
                        MaxPool<T>, std::vector<Convolution<T>>, MaxPool<T>, std::vector<Dense<T>>>;

inline constexpr int layers_of_model = 13;

/// Output channels of the convolutions, in units of the width; the dense layers have 16 of it.
inline constexpr std::array<Index, 7> channels_in_widths{1, 1, 2, 2, 4, 4, 4};

/// Logits of the ten classes from images [images][32][32][3]. The same seed gives the same model.
template <class T> [[nodiscard]] Model<T> make_model(ModelShape const& shape, std::uint64_t seed) {
  layers::Random random = layers::stream(seed, 0);
  Index inputs = colours;
  std::size_t made = 0;
  auto const convolutions = [&](int number) {
    std::vector<Convolution<T>> chain;
    for (; number > 0; --number) {
      Index const outputs = channels_in_widths[made++] * shape.width;
      chain.emplace_back(inputs, outputs, random);
      inputs = outputs;
    }
    return chain;
  };
  auto first = convolutions(2);
  auto second = convolutions(2);
  auto third = convolutions(3);
  Index const pixels = (side / 8) * (side / 8);
  Index const hidden = 16 * shape.width;
  auto const dropout = [&](std::uint64_t layer) {
    return Dropout{shape.dropout, stagger::random_bits(seed, {layer}), shape.minibatch};
  };
  std::vector<Dense<T>> dense;
  dense.emplace_back(pixels * inputs, hidden, dropout(0), random);
  dense.emplace_back(hidden, hidden, dropout(1), random);
  dense.emplace_back(hidden, classes, std::nullopt, random);
  return Model<T>(std::move(first), MaxPool<T>{}, std::move(second), MaxPool<T>{}, std::move(third),
                  MaxPool<T>{}, std::move(dense));
}

/// Logits from the same images without a hidden layer.
template <class T> [[nodiscard]] stagger::Sequential<Dense<T>> make_linear(std::uint64_t seed) {
  layers::Random random = layers::stream(seed, 0);
  return stagger::Sequential<Dense<T>>(Dense<T>(side * side * colours, classes, {}, random));
}

/// @return  [13] multiplications per image of each layer, forward and backward; of a pooling layer
///          its inputs, forward and backward
[[nodiscard]] inline std::vector<double> work_of(ModelShape const& shape) {
  std::vector<double> work;
  Index inputs = colours;
  Index pixels = side * side;
  for (std::size_t c = 0; c < channels_in_widths.size(); ++c) {
    Index const outputs = channels_in_widths[c] * shape.width;
    work.push_back(static_cast<double>(3 * pixels * 9 * inputs * outputs));
    inputs = outputs;
    if (c != 1 && c != 3 && c != 6) continue;
    work.push_back(static_cast<double>(2 * pixels * inputs));
    pixels /= 4;
  }
  Index const hidden = 16 * shape.width;
  for (Index const weights : {pixels * inputs * hidden, hidden * hidden, hidden * classes})
    work.push_back(static_cast<double>(3 * weights));
  return work;
}

/// @return  [13] numbers per image that each layer gives
[[nodiscard]] inline std::vector<std::size_t> outputs_of(ModelShape const& shape) {
  std::vector<std::size_t> outputs;
  Index pixels = side * side;
  for (std::size_t c = 0; c < channels_in_widths.size(); ++c) {
    Index const channels = channels_in_widths[c] * shape.width;
    outputs.push_back(layers::count(pixels * channels));
    if (c != 1 && c != 3 && c != 6) continue;
    pixels /= 4;
    outputs.push_back(layers::count(pixels * channels));
  }
  for (Index const hidden : {16 * shape.width, 16 * shape.width, Index{classes}})
    outputs.push_back(layers::count(hidden));
  return outputs;
}

/// @return  [13] what decides which layers a group shares
[[nodiscard]] inline std::vector<stagger::partition::LayerFeatures> features_of(
    ModelShape const& shape) {
  std::vector<stagger::partition::LayerFeatures> features;
  auto const values = outputs_of(shape);
  Index inputs = colours;
  for (std::size_t c = 0; c < channels_in_widths.size(); ++c) {
    Index const outputs = channels_in_widths[c] * shape.width;
    features.push_back({.parameters = layers::count(9 * inputs * outputs + outputs),
                        .biases = layers::count(outputs)});
    inputs = outputs;
    if (c == 1 || c == 3 || c == 6) features.push_back({});
  }
  for (std::size_t l = 0; l < features.size(); ++l) features[l].values = values[l];
  Index const hidden = 16 * shape.width;
  Index dense = (side / 8) * (side / 8) * inputs;
  for (Index const outputs : {hidden, hidden, Index{classes}}) {
    features.push_back({.inputs = layers::count(dense),
                        .outputs = layers::count(outputs),
                        .parameters = layers::count(dense * outputs + outputs),
                        .biases = layers::count(outputs)});
    dense = outputs;
  }
  for (std::size_t l = 0; l < features.size(); ++l)
    features[l].row_bytes = values[l] * sizeof(float);
  return features;
}

}  // namespace vgg
