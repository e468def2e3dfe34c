// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Which features of which examples are dropped.
/// @source N. Srivastava et al., "Dropout: A Simple Way to Prevent Neural Networks from
/// Overfitting", JMLR 15, 2014, section 4; scaled while training instead of afterwards.

#include <cstddef>
#include <cstdint>

#include <stagger/core/random.hpp>
#include <stagger/model/context.hpp>

#include "minibatch.hpp"

namespace vgg {

/// Whether a feature is dropped follows from the seed, the step, the example's number in the
/// minibatch and the feature's number in the whole layer. It is the same for every cut of the
/// minibatch into microbatches, number of replicas, cut into stages, and number of threads.
///
/// A context tells which row of the whole microbatch an action begins at, but not how many rows the
/// microbatches before it have; therefore the layer knows how its minibatches are cut.
struct Dropout {
  double rate = 0;         ///< share of the features that are dropped, in [0, 1)
  std::uint64_t seed = 0;  ///< differs from layer to layer
  Minibatch minibatch{};   ///< of every training step

  /// Whether this action drops anything.
  [[nodiscard]] bool acts(stagger::Context const& context) const noexcept {
    return rate > 0 && context.training();
  }

  /// The number in the minibatch of the first example that this action sees.
  [[nodiscard]] std::size_t first_example(stagger::Context const& context) const noexcept {
    auto const m = static_cast<std::size_t>(context.microbatch());  // a stream counts on
    return minibatch.first(m % minibatch.microbatches) + context.first_row();
  }

  [[nodiscard]] bool drops(std::int64_t step, std::size_t example,
                           std::size_t feature) const noexcept {
    std::uint64_t const bits =
        stagger::random_bits(seed, {static_cast<std::uint64_t>(step), example, feature});
    return static_cast<double>(bits >> 11U) * 0x1p-53 < rate;
  }
};

}  // namespace vgg
