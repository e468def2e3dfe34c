// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Replicas on nodes that are partly taken.
/// @source Fan et al., "DAPPLE", PPoPP 2021, section 4.1.

#include <vector>

#include <stagger/placement/fill.hpp>

namespace stagger::placement {

/// Partly taken nodes first, then fresh ones, so that few nodes are left partly taken.
struct AppendFirst {
  using policy_tag = FillTag;

  /// @throws Error  bad_configuration for more devices than are free
  [[nodiscard]] constexpr std::vector<int> fill(Occupancy const& occupied, int devices) const {
    return detail::in_order(occupied, devices, false);
  }
};

static_assert(FillPolicy<AppendFirst>);

}  // namespace stagger::placement
