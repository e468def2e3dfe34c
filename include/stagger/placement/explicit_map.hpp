// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Places given by the user or by a planner.

#include <vector>

#include <stagger/placement/policy.hpp>

namespace stagger::placement {

/// Rank r runs on `places[r]`. That there is one for each rank, and that all exist, is checked as
/// for every placement.
struct ExplicitMap {
  using policy_tag = PlacementTag;
  std::vector<int> places;  ///< [ranks]

  [[nodiscard]] constexpr std::vector<int> place(int, int) const { return places; }
};

static_assert(PlacementPolicy<ExplicitMap>);

}  // namespace stagger::placement
