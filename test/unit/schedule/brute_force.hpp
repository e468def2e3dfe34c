// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The best order of a tiny pipeline, by trying all of them.

#include <algorithm>
#include <array>
#include <cstddef>
#include <vector>

#include <stagger/schedule/bound.hpp>

namespace brute_force {

using namespace stagger;
using namespace stagger::schedule;

/// Every order of a rank's F, I, W on its stages; microbatches of one stage keep their order, which
/// loses nothing.
inline std::vector<std::vector<Action>> orders(std::vector<int> const& stages, int M) {
  std::vector<std::vector<Action>> all;
  std::vector<Action> row;
  std::vector<std::array<int, 3>> done(stages.size(), std::array<int, 3>{});
  auto const go = [&](auto const& self) -> void {
    if (row.size() == 3 * stages.size() * static_cast<std::size_t>(M)) {
      all.push_back(row);
      return;
    }
    for (std::size_t i = 0; i < stages.size(); ++i) {
      for (std::size_t k = 0; k < 3; ++k) {
        if (done[i][k] == M || (k > 0 && done[i][k] == done[i][k - 1])) continue;
        Kind const kind = k == 0   ? Kind::forward
                          : k == 1 ? Kind::backward_input
                                   : Kind::backward_weight;
        row.push_back({.kind = kind, .stage = stages[i], .microbatch = done[i][k]++});
        self(self);
        --done[i][k];
        row.pop_back();
      }
    }
  };
  go(go);
  return all;
}

/// Activations a row holds at most, 1 from F to I and `share` from I to W.
inline double held(std::vector<Action> const& row, double share) {
  double live = 0, most = 0;
  for (Action const& a : row) {
    if (a.kind == Kind::forward) live += 1;
    most = std::max(most, live);
    if (a.kind == Kind::backward_input) live -= 1 - share;
    if (a.kind == Kind::backward_weight) live -= share;
  }
  return most;
}

/// The shortest makespan over all orders that keep the limits.
inline double shortest(std::vector<std::vector<int>> const& stages, int S, int M,
                       Costs const& costs, Limits limits) {
  std::vector<std::vector<std::vector<Action>>> choice;
  for (auto const& mine : stages) {
    choice.push_back(orders(mine, M));
    auto& rows = choice.back();
    rows.erase(std::remove_if(rows.begin(), rows.end(),
                              [&](auto const& row) {
                                return (limits.in_flight > 0 && held(row, 1) > limits.in_flight) ||
                                       (limits.memory > 0 &&
                                        held(row, limits.weight_share) > limits.memory + 1e-9);
                              }),
               rows.end());
  }
  double best = 1e300;
  std::vector<std::size_t> at(stages.size(), 0);
  for (;;) {
    Table t{.stages = S, .microbatches = M};
    for (std::size_t r = 0; r < at.size(); ++r) {
      t.begin_row();
      for (Action const& a : choice[r][at[r]]) t.add(a);
    }
    double last = 0;
    auto const ran = stagger::schedule::detail::play(
        t, stagger::schedule::detail::stage_times(t, costs), -1,
        [&](std::size_t, std::size_t, double, double end, double) { last = std::max(last, end); });
    bool whole = true;
    for (std::size_t r = 0; r < at.size(); ++r)
      whole = whole && ran[r] == t.row(static_cast<int>(r)).size();
    if (whole) best = std::min(best, last);
    std::size_t r = 0;
    while (r < at.size() && ++at[r] == choice[r].size()) at[r++] = 0;
    if (r == at.size()) return best;
  }
}

}  // namespace brute_force
