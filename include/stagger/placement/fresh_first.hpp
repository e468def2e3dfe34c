// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Replicas on nodes that are not used yet.
/// @source Fan et al., "DAPPLE", PPoPP 2021, section 4.1.

#include <vector>

#include <stagger/placement/fill.hpp>

namespace stagger::placement {

/// Fresh nodes first, then those partly taken: a stage stays within one node where it can, so that
/// its all-reduce uses that node's links.
struct FreshFirst {
  using policy_tag = FillTag;

  /// @throws Error  bad_configuration for more devices than are free
  [[nodiscard]] constexpr std::vector<int> fill(Occupancy const& occupied, int devices) const {
    return detail::in_order(occupied, devices, true);
  }
};

static_assert(FillPolicy<FreshFirst>);

}  // namespace stagger::placement
