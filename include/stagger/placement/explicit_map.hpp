// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Places given by the user or by a planner.

#include <utility>
#include <vector>

#include <stagger/core/error.hpp>
#include <stagger/placement/policy.hpp>

namespace stagger::placement {

/// Rank r runs on `places[r]`.
struct ExplicitMap {
  using policy_tag = PlacementTag;
  std::vector<int> places;  ///< [ranks]

  /// @throws Error  bad_configuration if there is not one legal place for each rank
  [[nodiscard]] constexpr std::vector<int> place(int ranks, int count) const {
    if (std::cmp_not_equal(places.size(), ranks))
      raise(Errc::bad_configuration, "the placement names ", counted(places.size(), "place"),
            " for ", counted(ranks, "rank"), "; name one for each");
    for (int const p : places)
      if (p < 0 || p >= count)
        raise(Errc::bad_configuration, "place ", p, " does not exist; there are places 0 to ",
              count - 1);
    return places;
  }
};

static_assert(PlacementPolicy<ExplicitMap>);

}  // namespace stagger::placement
