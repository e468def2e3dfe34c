// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The number of microbatches that a table keeps in flight.

#include <algorithm>
#include <vector>

#include <stagger/schedule/action.hpp>
#include <stagger/schedule/table.hpp>

namespace stagger::schedule {

namespace detail {

/// Counts what one rank has in flight: F has run, B or W has not.
struct LiveCount {
  int live = 0;
  bool frees_late = false;  // the backward of a pair stands before its forward

  /// Runs the next action. In an overlapped pair the forward counts before the backward frees.
  /// @return how many are in flight meanwhile
  constexpr int run(Action const& a) noexcept {
    if (a.kind == Kind::forward) ++live;
    int const now = live + (frees_late ? 1 : 0);
    frees_late = a.overlaps_next && ends_flight(a.kind);
    if (ends_flight(a.kind)) --live;
    return now;
  }
};

}  // namespace detail

/// Most (stage, microbatch) pairs in flight on each rank. Slices count one each.
/// @return [ranks]
[[nodiscard]] constexpr std::vector<int> peak_in_flight(Table const& table) {
  std::vector<int> peaks;
  for (int r = 0; r < table.ranks(); ++r) {
    detail::LiveCount count;
    int peak = 0;
    for (Action const& a : table.row(r)) peak = std::max(peak, count.run(a));
    peaks.push_back(peak);
  }
  return peaks;
}

}  // namespace stagger::schedule
