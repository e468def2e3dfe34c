// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The number of microbatches that a table keeps in flight.

#include <vector>

#include <stagger/schedule/action.hpp>
#include <stagger/schedule/table.hpp>

namespace stagger::schedule {

/// Most (stage, microbatch) pairs in flight on each rank: F has run, B or W has not. Slices count
/// one each. In an overlapped pair the forward counts before the backward frees.
/// @return [ranks]
[[nodiscard]] constexpr std::vector<int> peak_in_flight(Table const& table) {
  std::vector<int> peaks;
  for (int r = 0; r < table.ranks(); ++r) {
    int live = 0, peak = 0;
    bool frees_first = false;  // the backward of a pair stands before its forward
    for (Action const& a : table.row(r)) {
      if (a.kind == Kind::forward) ++live;
      if (live + (frees_first ? 1 : 0) > peak) peak = live + (frees_first ? 1 : 0);
      frees_first = a.overlaps_next && ends_flight(a.kind);
      if (ends_flight(a.kind)) --live;
    }
    peaks.push_back(peak);
  }
  return peaks;
}

}  // namespace stagger::schedule
