// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The gradient reductions (REDUCE_GRAD) of a table that has none.

#include <cstddef>
#include <vector>

#include <stagger/core/grid.hpp>
#include <stagger/schedule/table.hpp>

namespace stagger::schedule {

/// Adds a reduction of its gradients for each stage on each rank that holds it, as early as can be:
/// right after the stage's last action there. For pipelines whose stages have replicas, in the
/// table (bidirectional) or beside it.
/// @param table  one that `verify` accepts, without reductions
[[nodiscard]] constexpr Table add_reductions(Table const& table) {
  Table out = table.like(table.actions.size());
  Grid<std::size_t> last(table.stages);
  for (int r = 0; r < table.ranks(); ++r) {
    auto const row = table.row(r);
    for (std::size_t at = 0; at < row.size(); ++at) {
      if (ends_flight(row[at].kind)) last[row[at].stage] = at;
    }
    out.begin_row();
    std::vector<int> due;  // stages of a pair, after both of its actions
    for (std::size_t at = 0; at < row.size(); ++at) {
      Action const& a = row[at];
      out.add(a);
      if (ends_flight(a.kind) && last[a.stage] == at) due.push_back(a.stage);
      if (a.overlaps_next) continue;
      for (int const stage : due) out.add({.kind = Kind::reduce_gradient, .stage = stage});
      due.clear();
    }
  }
  return out;
}

}  // namespace stagger::schedule
