// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Layer normalisation, as a part of HalfBlock and Head.
/// @source J. Ba, J. Kiros, G. Hinton, "Layer Normalization", 2016, equation 4.

#include <cstdint>
#include <string>

#include <stagger/core/tensor.hpp>
#include <stagger/model/context.hpp>

#include "shared.hpp"

namespace gpt {

/// Rows of a matrix, each `stride` numbers behind the one before.
template <class T> struct Rows {
  T* data;
  Index stride;
};

/// y = (x - mean(x)) / sqrt(variance(x) + 1e-5) * gain + bias, for each row of x.
template <class T> class Norm {
 public:
  struct Saved {
    stagger::Tensor<T> normal;  ///< [rows][width] (x - mean) / deviation
    stagger::Tensor<T> scale;   ///< [rows] 1 / deviation
    stagger::Tensor<T>
        gain_gradient;  ///< [width] of this microbatch, from `backward` to `add_gradients`
    stagger::Tensor<T> bias_gradient;  ///< [width]
    [[nodiscard]] std::uint64_t bytes() const noexcept {
      return normal.bytes() + scale.bytes() + gain_gradient.bytes() + bias_gradient.bytes();
    }
  };

  Norm(std::string const& name, Index width);

  stagger::Parameter<T> gain;  ///< [width]
  stagger::Parameter<T> bias;  ///< [width]

  /// @param x  [rows][width]
  /// @param y  [rows][width] out
  void forward(stagger::Context& context, T const* x, Rows<T> y, Index rows, Saved& saved) const;

  /// Recomputes the result of `forward` from what it saved.
  void output(stagger::Context& context, Saved const& saved, Rows<T> y, Index rows) const;

  /// dx = residual + the gradient that reaches x through the normalisation.
  /// @param dy        [rows][width]
  /// @param residual  [rows][width] may be null
  /// @param dx        [rows][width] out; must not be dy or residual
  void backward(stagger::Context& context, Rows<T const> dy, Rows<T const> residual, T* dx,
                Index rows, Saved& saved) const;

  /// GradientOrder the gradients that `backward` computed to those of the parameters.
  void add_gradients(stagger::Context& context, Saved const& saved) const;
};

}  // namespace gpt
