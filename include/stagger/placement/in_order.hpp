// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Neighbouring ranks together.

#include <cstddef>
#include <vector>

#include <stagger/placement/policy.hpp>

namespace stagger::placement {

/// Ranks in order over the places, in blocks of equal length: few messages pass between two places.
struct InOrder {
  using policy_tag = PlacementTag;

  [[nodiscard]] constexpr std::vector<int> place(int ranks, int places) const {
    std::vector<int> result(static_cast<std::size_t>(ranks));
    for (int r = 0; r < ranks; ++r)
      result[static_cast<std::size_t>(r)] =
          static_cast<int>(static_cast<long long>(r) * places / ranks);
    return result;
  }
};

static_assert(PlacementPolicy<InOrder>);

}  // namespace stagger::placement
