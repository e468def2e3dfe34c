// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Costs as a player of a table needs them: seconds of each stage's actions and of the
///         links that end there.

#include <stagger/core/grid.hpp>
#include <stagger/schedule/costs.hpp>
#include <stagger/schedule/table.hpp>

namespace stagger::schedule::detail {

/// The row of each stage; `several` for a stage that stands in more than one row, -1 for one that
/// stands in none.
inline constexpr int several = -2;
[[nodiscard]] constexpr Grid<int> owners(Table const& table) {
  Grid<int> owner(table.stages, -1);
  for (int rank = 0; rank < table.ranks(); ++rank) {
    for (Action const& a : table.row(rank)) {
      if (a.stage < 0 || a.stage >= table.stages || !is_compute(a.kind)) continue;
      int& o = owner[a.stage];
      o = o == -1 || o == rank ? rank : several;
    }
  }
  return owner;
}

/// Seconds of the actions of one stage (or of one slice there), and of the edges into it.
struct StageTimes {
  double forward = 0, backward = 0, input = 0, weight = 0;
  double link_forward = 0;   ///< from stage - 1; 0 where both stand on one rank
  double link_backward = 0;  ///< from stage + 1
  double reduce = 0;         ///< REDUCE_GRAD

  [[nodiscard]] constexpr double of(Kind kind) const noexcept {
    switch (kind) {
      case Kind::forward:
        return forward;
      case Kind::backward:
        return backward;
      case Kind::backward_input:
        return input;
      case Kind::backward_weight:
        return weight;
      default:
        return 0;
    }
  }
};

/// [stages]
using Times = Grid<StageTimes>;

[[nodiscard]] constexpr Times stage_times(Table const& table, Costs const& costs) {
  Grid<int> const owner = owners(table);
  Times times(table.stages);
  auto const crosses = [&](int a, int b) { return owner[a] == several || owner[a] != owner[b]; };
  for (int s = 0; s < table.stages; ++s) {
    StageCosts const& c = costs.of(s);
    double const share = 1.0 / table.slices;
    StageTimes& t = times[s];
    t.forward = c.forward_s * share;
    t.input = c.backward_input_s * share;
    t.weight = c.backward_weight_s * share;
    t.reduce = c.reduce_s;
    t.backward = (c.backward_input_s + c.backward_weight_s) * share;
    if (s > 0 && crosses(s, s - 1)) t.link_forward = costs.of(s - 1).transfer_s * share;
    if (s + 1 < table.stages && crosses(s, s + 1)) t.link_backward = c.transfer_s * share;
  }
  return times;
}

}  // namespace stagger::schedule::detail
