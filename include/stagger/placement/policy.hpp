// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Axis 4: what a device placement is.

#include <stagger/core/requirements.hpp>

#include <concepts>
#include <vector>

namespace stagger {

/// Marks a placement: `using policy_tag = stagger::PlacementTag;`.
struct PlacementTag {};

/// A placement says which place (a thread, a device) each rank of the pipeline runs on.
template <class P>
concept PlacementPolicy = std::copyable<P> && std::same_as<typename P::policy_tag, PlacementTag> &&
    requires(P const policy, int ranks, int places) {
  // [ranks] a place each, 0 <= place < places
  { policy.place(ranks, places) } -> std::same_as<std::vector<int>>;
};

}  // namespace stagger
