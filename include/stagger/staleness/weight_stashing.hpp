// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Weight stashing: the newest weights at each stage, kept until the backward pass of the
///         minibatch.
/// @source Narayanan et al., "PipeDream", SOSP 2019, section 3.3.

#include <stagger/staleness/policy.hpp>

namespace stagger::staleness {

/// Every microbatch is a minibatch. Its forward pass at a stage uses the newest weights of that
/// stage, and its backward pass the same ones; earlier stages are further behind. A stage keeps as
/// many versions as it has minibatches in flight.
struct WeightStashing {
  using policy_tag = StalenessTag;
  static constexpr bool synchronous = false;
  [[nodiscard]] constexpr int microbatches() const noexcept { return 1; }
  [[nodiscard]] constexpr int version(int, int available) const noexcept { return available; }
};

static_assert(AsynchronousPolicy<WeightStashing>);

}  // namespace stagger::staleness
