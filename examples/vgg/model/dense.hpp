// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A fully connected layer, with ReLU and dropout if it is not the last one.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <tuple>

#include <stagger/core/tensor.hpp>
#include <stagger/model/context.hpp>
#include <stagger/model/split.hpp>

#include "dropout.hpp"
#include "layers/index.hpp"
#include "layers/initial.hpp"

namespace vgg {

using layers::Index;

/// y = x * weight + bias, or y = dropout(max(0, x * weight + bias)): what is not dropped is divided
/// by 1 - rate.
template <class T> class Dense {
 public:
  using Input = stagger::Tensor<T>;   ///< [examples][...], `inputs` numbers each
  using Output = stagger::Tensor<T>;  ///< [examples][outputs]

  struct Saved {
    stagger::Tensor<T> slope;  ///< [examples][outputs] derivative of ReLU and dropout; else empty
    [[nodiscard]] std::uint64_t bytes() const noexcept { return slope.bytes(); }
  };

  /// Weights are normal with variance 2 / inputs, without ReLU 1 / inputs; biases are 0.
  /// @param dropout  behind a ReLU; none: the layer is linear
  Dense(Index inputs, Index outputs, std::optional<Dropout> dropout, layers::Random& random);

  auto parameters() { return std::tie(weight_, bias_); }

  [[nodiscard]] std::size_t inputs() const noexcept { return layers::count(inputs_); }
  [[nodiscard]] std::size_t outputs() const noexcept { return layers::count(outputs_); }
  /// The layer of a member of a group, with some of the outputs and all that belongs to them.
  [[nodiscard]] Dense part(int member, int members, stagger::SplitBy by) const;

  /// @throws Error  with Errc::mismatch unless each example has `inputs` numbers
  void forward(stagger::Context& context, Input const& x, Output& y, Saved& saved) const;

  void backward_input(stagger::Context& context, Input const& x, Output const& dy, Input& dx,
                      Saved& saved) const;

  void backward_weight(stagger::Context& context, Input const& x, Output const& dy,
                       Saved& saved) const;

 private:
  // The gradient in front of ReLU and dropout, [examples][outputs]: dy itself, or scratch memory.
  T const* before_dropout(stagger::Context& context, Output const& dy, Saved const& saved) const;

  Index inputs_;
  Index outputs_;
  Index first_output_ = 0;  // in the whole layer
  std::optional<Dropout> dropout_;
  stagger::Parameter<T> weight_;  // [inputs][outputs]
  stagger::Parameter<T> bias_;    // [outputs]
};

}  // namespace vgg
