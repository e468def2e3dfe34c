// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The default placement: neighbouring ranks share a place.

#include <vector>

#include <stagger/placement/policy.hpp>

namespace stagger::placement {

/// Assigns ranks to the places in order, in blocks of equal length, so that few messages pass
/// between places.
struct InOrder {
  using policy_tag = PlacementTag;

  [[nodiscard]] [[gnu::cold]] constexpr std::vector<int> place(int ranks, int places) const {
    std::vector<int> result;
    for (long long r = 0; r < ranks; ++r) {
      int const place = static_cast<int>(r * places / ranks);
      result.push_back(place);  // for a temporary, g++ would compile one more function
    }
    return result;
  }
};

static_assert(PlacementPolicy<InOrder>);

}  // namespace stagger::placement
