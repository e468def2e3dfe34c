// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Softmax cross-entropy over the 256 bytes, vectorised.

#include <stagger/core/tensor.hpp>
#include <stagger/model/context.hpp>
#include <stagger/model/loss.hpp>

#include "embedding.hpp"

namespace gpt {

/// In nats, one term per byte.
template <class T> struct CrossEntropy {
  using policy_tag = stagger::LossTag;
  using Target = Tokens;  ///< [sequences][length] the byte that follows

  [[nodiscard]] double terms(Target const& target) const noexcept {
    return static_cast<double>(target.size());
  }

  /// @throws Error  with Errc::mismatch if the output has not one row for each byte
  [[nodiscard]] double value(stagger::Context& context, stagger::Tensor<T> const& y,
                             Target const& target) const;

  double value_and_gradient(stagger::Context&, stagger::Tensor<T> const& y, Target const& target,
                            double scale, stagger::Tensor<T>& dy) const;
};

}  // namespace gpt
