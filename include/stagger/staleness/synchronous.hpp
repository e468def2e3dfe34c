// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   No staleness: bulk synchronous training.

#include <stagger/staleness/policy.hpp>

namespace stagger::staleness {

/// Every microbatch of a step sees the weights that the step before left; one version of each
/// weight lives.
struct Synchronous {
  using policy_tag = StalenessTag;
  static constexpr bool synchronous = true;
};

}  // namespace stagger::staleness
