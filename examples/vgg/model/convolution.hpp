// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A 3x3 convolution with ReLU.
/// @source K. Simonyan, A. Zisserman, "Very Deep Convolutional Networks for Large-Scale Image
/// Recognition", ICLR 2015, section 2.1.

#include <cstdint>
#include <tuple>

#include <stagger/core/tensor.hpp>
#include <stagger/model/context.hpp>

#include "layers/index.hpp"
#include "layers/initial.hpp"

namespace vgg {

using layers::Index;

/// y = max(0, x * weight + bias), with stride 1 and a border of zeros of one pixel: as many pixels
/// come out as go in.
///
/// Each image is laid out as a matrix of patches, [pixels][9 channels], and multiplied by the
/// weight; the backward pass lays it out again instead of keeping it, since it has nine times the
/// size of the image. Gradients of the parameters are added image by image.
template <class T> class Convolution {
 public:
  using Input = stagger::Tensor<T>;   ///< [images][height][width][inputs]
  using Output = stagger::Tensor<T>;  ///< [images][height][width][outputs]

  struct Saved {
    stagger::Tensor<std::uint8_t> on;  ///< shape of the output: 1 where it is positive, else 0
    [[nodiscard]] std::uint64_t bytes() const noexcept { return on.bytes(); }
  };

  /// Weights are normal with variance 2 / (9 inputs), biases 0.
  /// @param inputs, outputs  channels
  Convolution(Index inputs, Index outputs, layers::Random& random);

  auto parameters() { return std::tie(weight_, bias_); }

  /// @throws Error  with Errc::mismatch unless x has `inputs` channels
  void forward(stagger::Context& context, Input const& x, Output& y, Saved& saved) const;

  void backward_input(stagger::Context& context, Input const& x, Output const& dy, Input& dx,
                      Saved& saved) const;

  void backward_weight(stagger::Context& context, Input const& x, Output const& dy,
                       Saved& saved) const;

 private:
  Index inputs_;
  Index outputs_;
  stagger::Parameter<T> weight_;  // [3][3][inputs][outputs]
  stagger::Parameter<T> bias_;    // [outputs]
};

}  // namespace vgg
