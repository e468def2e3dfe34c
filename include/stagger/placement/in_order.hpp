// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Placement of neighbouring ranks on the same place.

#include <vector>

#include <stagger/placement/policy.hpp>

namespace stagger::placement {

/// Ranks in order over the places, in blocks of equal length: few messages pass between two places.
struct InOrder {
  using policy_tag = PlacementTag;

  [[nodiscard]] constexpr std::vector<int> place(int ranks, int places) const {
    std::vector<int> result;
    for (long long r = 0; r < ranks; ++r) result.push_back(static_cast<int>(r * places / ranks));
    return result;
  }
};

static_assert(PlacementPolicy<InOrder>);

}  // namespace stagger::placement
