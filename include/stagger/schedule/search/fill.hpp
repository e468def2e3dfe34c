// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   List scheduling of one stage on each rank under a memory limit, with weight gradients in
///         the gaps.

#include <algorithm>
#include <cstddef>
#include <vector>

#include <stagger/core/grid.hpp>
#include <stagger/core/shape.hpp>
#include <stagger/schedule/detail/wakeups.hpp>
#include <stagger/schedule/limits.hpp>
#include <stagger/schedule/proof/stage_times.hpp>
#include <stagger/schedule/table.hpp>

namespace stagger::schedule::detail {

/// How one run of `fill` decides.
struct FillRule {
  int warm_up =
      0;  ///< most forwards without their I on rank r: 0 no limit, else gap * (P - 1 - r) + S
  double wait_policy =
      0;  ///< a weight gradient does not start when a known input comes within this part of it
  bool alternate =
      false;  ///< after a gradient a forward first, where both are ready; else always the gradient
};

/// Rules in the order in which they help, chosen over 1200 random shapes, costs and limits: each
/// one is that which lowers the mean distance from the best of all 30 most, given those before it.
[[nodiscard]] inline std::vector<FillRule> fill_rules() {
  return {{2, 0.0, true},  {0, 0.5, true},  {0, 0.0, false}, {2, 0.5, true},
          {2, 0.5, false}, {1, 0.0, true},  {3, 0.0, true},  {2, 1.0, false},
          {1, 0.5, false}, {2, 0.0, false}, {3, 0.5, false}, {4, 0.5, true}};
}

/// Fills rows of P ranks with one stage each, rank by rank as time goes on. Room is kept by
/// construction.
/// @param slices  S: M counts slices, and the gradients of a microbatch's S come from the last rank
/// when it has run the forwards of all
/// @return an empty table when it ends later than `best_s`
[[nodiscard]] inline Table fill(Shape shape, Times const& times, Limits const& limits,
                                FillRule const& rule, double& best_s, int slices = 1) {
  int const P = shape.ranks, M = shape.microbatches;
  struct Rank {
    double free = 0;
    Room room{};
    int f = 0, i = 0, w = 0;
    bool after_gradient = false;
    Grid<double> forward_at{}, gradient_at{};  // [M] arrival of inputs; -1: not known
    std::vector<Action> row{};
  };
  Grid<Rank> ranks(P);
  auto const actions = 3 * static_cast<std::size_t>(M);
  for (int r = 0; r < P; ++r) {
    ranks[r].forward_at = Grid<double>(M, r == 0 ? 0.0 : -1.0);
    ranks[r].gradient_at = Grid<double>(M, -1.0);
    ranks[r].row.reserve(actions);
  }

  Wakeups wakeups(P);
  double last = 0;
  while (!wakeups.empty()) {
    auto const [now, r] = wakeups.pop();
    Rank& rank = ranks[r];
    if (rank.free > now) continue;
    StageTimes const& t = times[r];
    double const f_at = rank.f < M ? rank.forward_at[rank.f] : -1;
    double const i_at = rank.i < rank.f ? rank.gradient_at[rank.i] : -1;
    long long const warm_up = static_cast<long long>(rule.warm_up) * (P - 1 - r) + slices;
    bool const wants = rule.warm_up == 0 || rank.f - rank.i < warm_up;
    bool const takes = rank.room.takes(limits);
    bool const f_ready = f_at >= 0 && f_at <= now && wants && takes;
    bool const i_ready = i_at >= 0 && i_at <= now;
    Kind kind{};
    if (i_ready && !(rule.alternate && rank.after_gradient && f_ready)) {
      kind = Kind::backward_input;
    } else if (f_ready) {
      kind = Kind::forward;
    } else if (rank.w < rank.i) {
      double soon = -1;  // the next input that is on its way
      if (i_at > now) soon = i_at;
      if (f_at > now && wants && takes && (soon < 0 || f_at < soon)) soon = f_at;
      bool const full = f_at >= 0 && wants && !takes;
      if (soon > 0 && !full && soon < now + rule.wait_policy * t.weight)
        continue;  // woken when it comes
      kind = Kind::backward_weight;
    } else {
      continue;
    }
    double const end = now + t.of(kind);
    int m = 0;
    if (kind == Kind::forward) {
      m = rank.f++;
      rank.after_gradient = false;
      if (r + 1 < P) {
        double const arrival = end + times[r + 1].link_forward;
        ranks[r + 1].forward_at[m] = arrival;
        wakeups.push(arrival, r + 1);
      } else if ((m + 1) % slices == 0) {
        for (int back = 0; back < slices; ++back) rank.gradient_at[m - back] = end;
      }
    } else if (kind == Kind::backward_input) {
      m = rank.i++;
      rank.after_gradient = true;
      if (r > 0) {
        double const arrival = end + times[r - 1].link_backward;
        ranks[r - 1].gradient_at[m] = arrival;
        wakeups.push(arrival, r - 1);
      }
    } else {
      m = rank.w++;
    }
    rank.room.run(kind, limits);
    rank.row.push_back({.kind = kind, .stage = r, .microbatch = m});
    rank.free = end;
    last = std::max(last, end);
    if (last >= best_s) return {};
    wakeups.push(end, r);
  }
  Table table = Table{.stages = P, .microbatches = M}.like(3 * P * M);
  for (Rank const& rank : ranks) {
    if (rank.row.size() != actions) return {};
    table.add_row(rank.row);
  }
  best_s = last;
  return table;
}

}  // namespace stagger::schedule::detail
