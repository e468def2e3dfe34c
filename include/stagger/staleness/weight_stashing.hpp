// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Weight stashing: the newest weights at each stage, kept until the minibatch comes back.
/// @source Narayanan et al., "PipeDream", SOSP 2019, section 3.3.

#include <stagger/staleness/policy.hpp>

namespace stagger::staleness {

/// Every microbatch is a minibatch. Its forward at a stage takes the newest weights of that stage,
/// its backward the same ones; stages further up lag further behind. A stage keeps as many versions
/// as it has minibatches in flight.
struct WeightStashing {
  using policy_tag = StalenessTag;
  static constexpr bool synchronous = false;
  [[nodiscard]] constexpr int microbatches() const noexcept { return 1; }
  [[nodiscard]] constexpr int version(int, int available) const noexcept { return available; }
};

static_assert(AsynchronousPolicy<WeightStashing>);

}  // namespace stagger::staleness
