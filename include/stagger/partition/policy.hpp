// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Axis 3: what a partitioner is.

#include <stagger/core/requirements.hpp>

#include <concepts>
#include <vector>

namespace stagger {

/// Marks a partitioner: `using policy_tag = stagger::PartitionTag;`.
struct PartitionTag {};

/// A partitioner cuts a chain of layers into stages.
template <class P>
concept PartitionPolicy = std::copyable<P> && std::same_as<typename P::policy_tag, PartitionTag> &&
    requires(P const policy, int layers) {
  // [stages - 1] first layer of each stage after the first, strictly rising, in 1..layers-1
  { policy.cuts(layers) } -> std::same_as<std::vector<int>>;
};

}  // namespace stagger
