// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Double-buffered weights: two versions, and all stages one update behind.
/// @source Narayanan et al., "Memory-Efficient Pipeline-Parallel DNN Training", arXiv 2006.09503,
///         section 3.1:
///         W(t+1) = W(t) - rate * gradient(W(t-1)).

#include <stagger/core/error.hpp>
#include <stagger/staleness/policy.hpp>

namespace stagger::staleness {

/// Minibatch t sees, at every stage, the weights after t - 1 updates, so every gradient is one
/// update late. A minibatch needs at least as many microbatches as there are ranks.
struct DoubleBuffered {
  using policy_tag = StalenessTag;
  static constexpr bool synchronous = false;

  int microbatches_per_minibatch = 1;  ///< >= ranks

  /// @throws Error  bad_configuration
  void check() const {
    if (microbatches_per_minibatch < 1)
      raise(Errc::bad_configuration, "a minibatch cannot have ",
            counted(microbatches_per_minibatch, "microbatch"),
            "; let DoubleBuffered::microbatches_per_minibatch be at least the number of ranks");
  }
  [[nodiscard]] constexpr int microbatches() const noexcept { return microbatches_per_minibatch; }
  [[nodiscard]] constexpr int version(int minibatch, int) const noexcept {
    return minibatch > 0 ? minibatch - 1 : 0;
  }
};

static_assert(AsynchronousPolicy<DoubleBuffered>);

}  // namespace stagger::staleness
