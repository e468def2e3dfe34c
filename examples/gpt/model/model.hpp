// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The chain of layers, and estimates of their memory and work.

#include <string>
#include <utility>
#include <vector>

#include <stagger/model/sequential.hpp>

#include "cross_entropy.hpp"
#include "embedding.hpp"
#include "half_block.hpp"
#include "head.hpp"

namespace gpt {

/// Sizes of a model.
struct ModelShape {
  Index layers;  ///< blocks
  Index width;   ///< a multiple of heads
  Index heads;
  Index context;  ///< longest sequence
};

template <class T>
using Model = stagger::Sequential<Embedding<T>, std::vector<HalfBlock<T>>, Head<T>>;

/// The least memory that training needs, in bytes: values, gradients and two optimizer states of
/// each parameter, and what the blocks save of one microbatch for the backward pass.
/// @param rows  tokens of a microbatch
[[nodiscard]] inline double least_bytes(ModelShape const& shape, double rows) {
  auto const layers = static_cast<double>(shape.layers);
  auto const width = static_cast<double>(shape.width);
  auto const context = static_cast<double>(shape.context);
  double const parameters =
      12 * layers * width * width + width * (2 * static_cast<double>(classes) + context);
  double const saved = layers * rows * (15 * width + static_cast<double>(shape.heads) * context);
  return sizeof(float) * (4 * parameters + saved);
}

/// The same seed gives the same model.
template <class T> [[nodiscard]] Model<T> make_model(ModelShape const& shape, std::uint64_t seed) {
  Random random = stream(seed, 0);
  Embedding<T> embedding(shape.width, shape.context, random);
  std::vector<HalfBlock<T>> halves;
  for (Index l = 0; l < shape.layers; ++l) {
    halves.emplace_back(shape.width,
                        Projections<T>::attention(shape.width, shape.heads, shape.layers, random));
    halves.emplace_back(shape.width, Projections<T>::mlp(shape.width, shape.layers, random));
  }
  return Model<T>(std::move(embedding), std::move(halves), Head<T>(shape.width, random));
}

/// @return  [2 blocks + 2] of the layers
[[nodiscard]] inline std::vector<std::string> layer_names(Index blocks) {
  std::vector<std::string> names{"embedding"};
  for (Index l = 1; l <= blocks; ++l)
    for (char const* half : {" attention", " mlp"})
      names.push_back("block " + std::to_string(l) + half);
  names.emplace_back("head");
  return names;
}

/// @return  [2 layers + 2] multiplications per token of each layer, forward and backward, at full
///          context. Those of attention count twice, since its small products are less efficient.
[[nodiscard]] inline std::vector<double> work_of(ModelShape const& shape) {
  auto const width = static_cast<double>(shape.width);
  std::vector<double> work{3 * width};
  for (Index l = 0; l < shape.layers; ++l) {
    work.push_back(12 * width * width + 12 * static_cast<double>(shape.context) * width);
    work.push_back(24 * width * width);
  }
  work.push_back(3 * width * static_cast<double>(classes));
  return work;
}

}  // namespace gpt
