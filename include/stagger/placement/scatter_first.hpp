// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Replicas spread over nodes.
/// @source Fan et al., "DAPPLE", PPoPP 2021, section 4.1.

#include <cstddef>
#include <vector>

#include <stagger/placement/fill.hpp>

namespace stagger::placement {

/// One device of each node in turn, over the partly taken nodes, or over all while none is taken:
/// for stages with few weights and large activations.
struct ScatterFirst {
  using policy_tag = FillTag;
  bool strict = false;  ///< partly taken nodes alone, once there are any

  /// @throws Error  bad_configuration for more devices than are free
  [[nodiscard]] constexpr std::vector<int> fill(Occupancy const& occupied, int devices) const {
    detail::require_room(occupied, devices);
    std::vector<int> chosen(occupied.size.size(), 0);
    bool used = false;
    for (int const t : occupied.taken) used = used || t > 0;
    for (int turn = used ? 0 : 1; turn < 2 && !(strict && used && turn == 1); ++turn) {
      for (bool more = true; more && devices > 0;) {
        more = false;
        for (std::size_t n = 0; n < chosen.size() && devices > 0; ++n) {
          if (turn == 0 && occupied.taken[n] == 0) continue;
          if (turn == 1 && used && occupied.taken[n] > 0) continue;
          if (chosen[n] == occupied.free(n)) continue;
          ++chosen[n];
          --devices;
          more = true;
        }
      }
    }
    if (devices > 0) chosen.clear();
    return chosen;
  }
};

static_assert(FillPolicy<ScatterFirst>);

}  // namespace stagger::placement
