// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Weight gradients separate from input gradients: every backward is split, and the weight
///         gradients of a given order are placed again.

#include <algorithm>
#include <cstddef>
#include <vector>

#include <stagger/core/grid.hpp>
#include <stagger/schedule/limits.hpp>
#include <stagger/schedule/proof/detail/play.hpp>
#include <stagger/schedule/proof/detail/stage_times.hpp>

namespace stagger::schedule::detail {

/// The same table with every backward as I and W side by side: its gradients leave earlier, nothing
/// else changes. Pairs stay as they are.
[[nodiscard]] inline Table split_backwards(Table const& table) {
  Table out = table.like(table.actions.size() * 3 / 2);
  for (int r = 0; r < table.ranks(); ++r) {
    out.begin_row();
    bool paired = false;  // with the action before
    for (Action a : table.row(r)) {
      bool const alone = !paired && !a.overlaps_next;
      paired = a.overlaps_next;
      if (a.kind == Kind::backward && alone) {
        a.kind = Kind::backward_input;
        out.add(a);
        a.kind = Kind::backward_weight;
      }
      out.add(a);
    }
  }
  return out;
}

/// Keeps a table's order of F and I, and places its weight gradients again: each where its rank
/// would otherwise idle for at least `part` of its duration, or where a forward needs room; the
/// rest at the end.
/// @param table  split backwards, no pairs, accepted by `verify`
/// @return an empty table where the limits cannot be kept in this order
[[nodiscard]] inline Table refill(Table const& table, Times const& times, Limits const& limits,
                                  double part) {
  struct Rank {
    double free = 0;
    Occupancy occupancy{};
    std::size_t reached = 0;        // index in the given row
    std::vector<Action> pending{};  // weight gradients, oldest first
    std::size_t weighed = 0;        // how many of them have run
    std::vector<Action> row{};
  };
  Delays delays(table, times);
  Grid<Rank> ranks(table.ranks());
  std::vector<int> runnable;
  for (int r = table.ranks(); r-- > 0;) runnable.push_back(r);
  while (!runnable.empty()) {
    int const r = runnable.back();
    runnable.pop_back();
    Rank& rank = ranks[r];
    auto const row = table.row(r);
    for (; rank.reached < row.size(); ++rank.reached) {
      Action a = row[rank.reached];
      if (a.kind == Kind::backward_weight) continue;
      bool const up = a.kind == Kind::forward;
      double given = 0;
      double const ready = delays.arrives(r, a, given);
      if (ready < 0) break;
      while (rank.weighed < rank.pending.size()) {
        Action const& weight = rank.pending[rank.weighed];
        double const cost = times[weight.stage].weight;
        if (rank.free + part * cost > ready && !(up && !rank.occupancy.takes(limits))) break;
        ++rank.weighed;
        rank.row.push_back(weight);
        rank.free += cost;
        rank.occupancy.run(Kind::backward_weight, limits);
      }
      if (up && !rank.occupancy.takes(limits)) return {};
      rank.row.push_back(a);
      rank.free = std::max(rank.free, ready) + times[a.stage].of(a.kind);
      delays.ended(0, a, rank.free, runnable);
      rank.occupancy.run(a.kind, limits);
      if (!up) {
        a.kind = Kind::backward_weight;
        rank.pending.push_back(a);
      }
    }
  }
  Table out = table.like(table.actions.size());
  for (Rank const& rank : ranks) {
    out.add_row(rank.row);
    for (std::size_t w = rank.weighed; w < rank.pending.size(); ++w) out.add(rank.pending[w]);
  }
  return out;
}

}  // namespace stagger::schedule::detail
