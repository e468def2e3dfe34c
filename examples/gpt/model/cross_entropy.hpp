// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Softmax cross-entropy over the 256 bytes, vectorised.

#include <stagger/core/tensor.hpp>
#include <stagger/model/context.hpp>
#include <stagger/model/loss.hpp>

#include "embedding.hpp"

namespace gpt {

/// Cross-entropy in nats, with one term per byte.
template <class T> struct CrossEntropy {
  using policy_tag = stagger::LossTag;
  using Target = Tokens;  ///< [sequences][length] the byte after each token

  [[nodiscard]] double terms(Target const& target) const noexcept {
    return static_cast<double>(target.size());
  }

  /// @throws Error  with Errc::mismatch unless the output has one row for each byte
  [[nodiscard]] double value(stagger::Context& context, stagger::Tensor<T> const& y,
                             Target const& target) const;

  double value_and_gradient(stagger::Context&, stagger::Tensor<T> const& y, Target const& target,
                            double scale, stagger::Tensor<T>& dy) const;
};

}  // namespace gpt
