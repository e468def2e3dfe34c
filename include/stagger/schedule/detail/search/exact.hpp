// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The shortest makespan of a small pipeline, by dynamic programming over the progress of
///         each stage.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include <stagger/core/grid.hpp>
#include <stagger/core/shape.hpp>
#include <stagger/schedule/limits.hpp>
#include <stagger/schedule/proof/detail/stage_times.hpp>
#include <stagger/schedule/table.hpp>

namespace stagger::schedule::detail {

/// Searches all orders of F, I and W, each stage's microbatches in order.
///
/// How far each stage is names a state; two partial schedules in one state are compared by when
/// ranks become free and when the values not read yet arrive, and the one that is later in all of
/// that is dropped. Exact, since what is later in all can never end sooner.
/// @param shape   S <= 7 and M <= 7
/// @param owner   [stages] the rank that holds each
/// @param best_s  a makespan to beat; the shortest one afterwards
/// @param slices  M counts slices, of which this many make a microbatch: its first gradient needs
///                all their forwards
/// @param most    partial schedules of one length that are extended, those that promise most; the
///                table found need not be the shortest then. 0: all
/// @return the table that beats it, or an empty one where none does
[[nodiscard]] inline Table exact(Shape shape, Times const& times, Grid<int> const& owner,
                                 Limits const& limits, double& best_s, int slices = 1,
                                 std::size_t most = 0) {
  int const P = shape.ranks, S = owner.size(), M = shape.microbatches;
  constexpr int f = 0, i = 1, w = 2;  // F, I and W
  constexpr Kind kinds[] = {Kind::forward, Kind::backward_input, Kind::backward_weight};
  struct Node {
    Grid<double> at;  // [S][2][M] ends of F and of I, then [P] when each rank is free
    std::size_t parent;
    Action action;
  };
  using State = std::uint64_t;  // F, I, W of each stage, three bits each
  using Layer = std::map<State, std::vector<std::size_t>>;  // nodes of each state
  auto const count = [](State state, int s, int k) {
    return static_cast<int>(state >> (3 * (3 * s + k)) & 7);
  };
  auto const end_of = [M](int s, int k, int m) { return (2 * s + k) * M + m; };
  auto const free_of = [S, M](int r) { return 2 * S * M + r; };
  auto const left_of = [&](State state, int s) {  // seconds of what a stage has not run
    return (M - count(state, s, f)) * times[s].forward + (M - count(state, s, i)) * times[s].input +
           (M - count(state, s, w)) * times[s].weight;
  };
  std::vector<Node> nodes;
  nodes.push_back({Grid<double>(2 * S * M + P), 0, {}});
  Layer layer;
  layer[0] = {0};

  // From the start of an I to the end of the iteration, at least; and from the start of an F.
  Grid<double> after_input(S), after_forward(S);
  for (int s = 0; s < S; ++s) {
    after_input[s] = times[s].input + times[s].weight;
    if (s > 0)
      after_input[s] = std::max(after_input[s],
                                times[s].input + times[s - 1].link_backward + after_input[s - 1]);
  }
  for (int s = S; s-- > 0;)
    after_forward[s] =
        times[s].forward +
        (s + 1 < S ? times[s + 1].link_forward + after_forward[s + 1] : after_input[s]);
  // Whether, with `rank` busy until `end`, the remaining work cannot end before the best time so
  // far.
  auto const hopeless = [&](State to, Grid<double> const& at, int rank, double end) {
    auto const free = [&](int r) { return r == rank ? end : at[free_of(r)]; };
    for (int r = 0; r < P; ++r) {
      double left = 0;
      for (int s = 0; s < S; ++s) {
        if (owner[s] == r) left += left_of(to, s);
      }
      if (free(r) + left >= best_s) return true;
    }
    for (int s = 0; s < S; ++s) {
      double const now = free(owner[s]);
      int const inputs = M - count(to, s, i), forwards = M - count(to, s, f);
      if (inputs > 0 && now + (inputs - 1) * times[s].input + after_input[s] >= best_s) return true;
      if (forwards > 0 && now + (forwards - 1) * times[s].forward + after_forward[s] >= best_s)
        return true;
    }
    return false;
  };

  // Keeps the nodes whose ranks would be done soonest with what they have left.
  auto const thin = [&](Layer& all, std::size_t keep) {
    std::vector<std::tuple<double, double, State, std::size_t>> order;
    for (auto const& [state, members] : all) {
      for (std::size_t const n : members) {
        double latest = 0, sum = 0;
        for (int r = 0; r < P; ++r) {
          double end = nodes[n].at[free_of(r)];
          for (int s = 0; s < S; ++s) {
            if (owner[s] == r) end += left_of(state, s);
          }
          latest = std::max(latest, end);
          sum += end;
        }
        order.emplace_back(latest, sum, state, n);
      }
    }
    if (order.size() <= keep) return;
    std::sort(order.begin(), order.end());
    all.clear();
    for (std::size_t n = 0; n < keep; ++n)
      all[std::get<2>(order[n])].push_back(std::get<3>(order[n]));
  };

  // When the input of a stage's next F, I or W arrives; negative where it may not run.
  auto const ready = [&](State state, Grid<double> const& at, int s, int k, int done) -> double {
    if (k == f) {
      int live = 0, waiting = 0;
      for (int q = 0; q < S; ++q) {
        if (owner[q] != owner[s]) continue;
        live += count(state, q, f) - count(state, q, w);
        waiting += count(state, q, i) - count(state, q, w);
      }
      Occupancy const occupancy{.held = (live - waiting) + limits.weight_share * waiting,
                                .live = live};
      if (!occupancy.takes(limits)) return -1;
      if (s == 0) return 0;
      if (count(state, s - 1, f) <= done) return -1;
      return at[end_of(s - 1, f, done)] + times[s].link_forward;
    }
    if (k == w) return 0;
    if (s + 1 == S) return count(state, s, f) < (done / slices + 1) * slices ? -1 : 0;
    if (count(state, s + 1, i) <= done) return -1;
    return at[end_of(s + 1, i, done)] + times[s].link_backward;
  };
  auto const covers = [](Grid<double> const& a, Grid<double> const& b) {
    return std::equal(a.begin(), a.end(), b.begin(), [](double x, double y) { return x <= y; });
  };

  for (int step = 0; step < 3 * S * M; ++step) {
    Layer next;
    for (auto const& [state, members] : layer) {
      for (std::size_t const n : members) {
        for (int s = 0; s < S; ++s) {
          for (int k = f; k <= w; ++k) {
            int const done = count(state, s, k);
            if (done == M || (k != f && done == count(state, s, k - 1))) continue;
            double const input = ready(state, nodes[n].at, s, k, done);
            if (input < 0) continue;
            int const free = free_of(owner[s]);
            double const end = std::max(nodes[n].at[free], input) + times[s].of(kinds[k]);
            State const to = state + (State{1} << (3 * (3 * s + k)));
            if (hopeless(to, nodes[n].at, owner[s], end)) continue;
            Grid<double> at = nodes[n].at;
            at[free] = end;
            if (k != w) at[end_of(s, k, done)] = end;
            // Values that have been read no longer count.
            for (int q = 0; q < S; ++q) {
              int const f_read = count(to, q + 1 < S ? q + 1 : q, f);
              for (int m = 0; m < f_read; ++m) at[end_of(q, f, m)] = 0;
              int const i_read = count(to, q > 0 ? q - 1 : q, i);
              for (int m = 0; m < i_read; ++m) at[end_of(q, i, m)] = 0;
            }
            auto& rivals = next[to];
            bool const dropped = std::any_of(rivals.begin(), rivals.end(), [&](std::size_t o) {
              return covers(nodes[o].at, at);
            });
            if (dropped) continue;
            std::erase_if(rivals, [&](std::size_t o) { return covers(at, nodes[o].at); });
            rivals.push_back(nodes.size());
            nodes.push_back({std::move(at), n, {.kind = kinds[k], .stage = s, .microbatch = done}});
          }
        }
      }
    }
    if (most > 0) thin(next, most);
    layer = std::move(next);
  }
  std::size_t found = 0;
  for (auto const& [state, members] : layer) {
    for (std::size_t const n : members) {
      double end = 0;
      for (int r = 0; r < P; ++r) end = std::max(end, nodes[n].at[free_of(r)]);
      if (end >= best_s) continue;
      best_s = end;
      found = n;
    }
  }
  if (found == 0) return {};
  Grid<std::vector<Action>> rows(P);
  for (std::size_t n = found; n != 0; n = nodes[n].parent)
    rows[owner[nodes[n].action.stage]].push_back(nodes[n].action);
  Table table{.stages = S, .microbatches = M};
  for (auto& row : rows) {
    std::reverse(row.begin(), row.end());
    table.add_row(row);
  }
  return table;
}

}  // namespace stagger::schedule::detail
