// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Replicas spread over nodes.
/// @source Fan et al., "DAPPLE", PPoPP 2021, section 4.1.

#include <cstddef>
#include <vector>

#include <stagger/placement/fill.hpp>

namespace stagger::placement {

/// One device of each node in turn, over the partly taken nodes first, then over the fresh ones:
/// for stages with few weights and large activations.
struct ScatterFirst {
  using policy_tag = FillTag;

  /// @throws Error  bad_configuration for more devices than are free
  [[nodiscard]] constexpr std::vector<int> fill(Occupancy const& occupied, int devices) const {
    detail::require_room(occupied, devices);
    std::vector<int> chosen(occupied.size.size(), 0);
    auto const fresh = [&](std::size_t node) { return occupied.taken[node] == 0; };
    // Partly taken nodes in the first pass, fresh ones in the second.
    for (bool const pass_fresh : {false, true})
      for (bool more = true; more && devices > 0;) {
        more = false;
        for (std::size_t n = 0; n < chosen.size() && devices > 0; ++n) {
          if (fresh(n) != pass_fresh || chosen[n] == occupied.free(n)) continue;
          ++chosen[n];
          --devices;
          more = true;
        }
      }
    return chosen;
  }
};

static_assert(FillPolicy<ScatterFirst>);

}  // namespace stagger::placement
