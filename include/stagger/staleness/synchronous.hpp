// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   No staleness: bulk synchronous training.

#include <stagger/staleness/policy.hpp>

namespace stagger::staleness {

/// Every microbatch of a step sees the weights after the previous step, so there is one version of
/// the weights. With a parameter server, workers take each step together.
struct Synchronous {
  using policy_tag = StalenessTag;
  static constexpr bool synchronous = true;
};

}  // namespace stagger::staleness
