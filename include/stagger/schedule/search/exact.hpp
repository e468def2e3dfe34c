// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The shortest makespan of a small pipeline, by dynamic programming over how far each
/// stage is.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include <stagger/schedule/search/fill.hpp>

namespace stagger::schedule::detail {

/// Searches all orders of F, I and W, each stage's microbatches in order.
///
/// How far each stage is names a state; two partial schedules in one state are compared by when
/// ranks become free and when the values not read yet arrive, and the one that is later in all of
/// that is dropped. Exact, since what is later in all can never end sooner.
/// @param shape   S <= 7 and M <= 7
/// @param owner   [stages] the rank that holds each
/// @param best_s  a makespan to beat; the shortest one afterwards
/// @param slices  M counts slices, of which so many make a microbatch: its first gradient needs all
/// their forwards
/// @param most  partial schedules of one length that are gone on with, those that promise most;
/// then what is found need not be the shortest. 0: all
/// @return the table that beats it, or an empty one where none does
[[nodiscard]] inline Table exact(Shape shape, std::vector<StageTimes> const& times,
                                 std::vector<std::size_t> const& owner, Limits const& limits,
                                 double& best_s, int slices = 1, std::size_t most = 0) {
  auto const P = static_cast<std::size_t>(shape.ranks);
  auto const S = owner.size();
  auto const M = static_cast<std::uint8_t>(shape.microbatches);
  struct Node {
    std::vector<double> at;  // [S][2 * M] ends of F and of I, then [P] when each rank is free
    std::size_t parent;
    Action action;
  };
  using State = std::uint64_t;  // f, i, w of each stage, three bits each
  auto const count = [](State state, std::size_t which) {
    return static_cast<std::uint8_t>(state >> (3 * which) & 7);
  };
  std::vector<Node> nodes;
  std::map<State, std::vector<std::size_t>> layer;
  std::size_t const row = 2 * static_cast<std::size_t>(M);
  nodes.push_back({std::vector<double>(S * row + P, 0.0), 0, {}});
  layer[0] = {0};
  std::size_t found = 0;

  // From the start of an I to the end of the iteration, at least.
  std::vector<double> tails(S, 0.0);
  for (std::size_t s = 0; s < S; ++s) {
    tails[s] = times[s].input + times[s].weight;
    if (s > 0)
      tails[s] = std::max(tails[s], times[s].input + times[s - 1].link_backward + tails[s - 1]);
  }
  // From the start of an F, likewise.
  std::vector<double> ways(S, 0.0);
  for (std::size_t s = S; s-- > 0;)
    ways[s] = times[s].forward + (s + 1 < S ? times[s + 1].link_forward + ways[s + 1] : tails[s]);
  // What is left to do cannot end before the best so far: not worth going on.
  auto const hopeless = [&](State to, std::vector<double> const& at) {
    for (std::size_t r = 0; r < P; ++r) {
      double left = 0;
      for (std::size_t s = 0; s < S; ++s) {
        if (owner[s] != r) continue;
        left += (M - count(to, 3 * s)) * times[s].forward +
                (M - count(to, 3 * s + 1)) * times[s].input +
                (M - count(to, 3 * s + 2)) * times[s].weight;
      }
      if (at[S * row + r] + left >= best_s) return true;
    }
    for (std::size_t s = 0; s < S; ++s) {
      double const now = at[S * row + owner[s]];
      int const no_input = M - count(to, 3 * s + 1);
      int const no_forward = M - count(to, 3 * s);
      if (no_input > 0 && now + (no_input - 1) * times[s].input + tails[s] >= best_s) return true;
      if (no_forward > 0 && now + (no_forward - 1) * times[s].forward + ways[s] >= best_s)
        return true;
    }
    return false;
  };

  // Keeps those whose ranks would be done soonest with what they have left.
  auto const thin = [&](std::map<State, std::vector<std::size_t>>& all, std::size_t keep) {
    std::vector<std::tuple<double, double, State, std::size_t>> order;
    for (auto const& [state, members] : all) {
      for (std::size_t const n : members) {
        double latest = 0, sum = 0;
        for (std::size_t r = 0; r < P; ++r) {
          double end = nodes[n].at[S * row + r];
          for (std::size_t s = 0; s < S; ++s) {
            if (owner[s] != r) continue;
            end += (M - count(state, 3 * s)) * times[s].forward +
                   (M - count(state, 3 * s + 1)) * times[s].input +
                   (M - count(state, 3 * s + 2)) * times[s].weight;
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
    for (std::size_t i = 0; i < keep; ++i)
      all[std::get<2>(order[i])].push_back(std::get<3>(order[i]));
  };

  for (std::size_t step = 0; step < 3 * S * M; ++step) {
    std::map<State, std::vector<std::size_t>> next;
    for (auto const& [state, members] : layer) {
      for (std::size_t const n : members) {
        for (std::size_t s = 0; s < S; ++s) {
          std::size_t const r = owner[s];
          for (std::size_t k = 0; k < 3; ++k) {
            std::uint8_t const done = count(state, 3 * s + k);
            if (done == M || (k > 0 && done == count(state, 3 * s + k - 1))) continue;
            double const free = nodes[n].at[S * row + r];
            double ready = 0;
            if (k == 0) {
              int live = 0, waiting = 0;
              for (std::size_t q = 0; q < S; ++q) {
                if (owner[q] != r) continue;
                live += count(state, 3 * q) - count(state, 3 * q + 2);
                waiting += count(state, 3 * q + 1) - count(state, 3 * q + 2);
              }
              Room const room{.held = (live - waiting) + limits.weight_share * waiting,
                              .live = live};
              if (!room.takes(limits)) continue;
              if (s > 0) {
                if (count(state, 3 * (s - 1)) <= done) continue;
                ready = nodes[n].at[(s - 1) * row + done] + times[s].link_forward;
              }
            } else if (k == 1 && s + 1 == S) {
              if (count(state, 3 * s) < (done / slices + 1) * slices) continue;
            } else if (k == 1) {
              if (count(state, 3 * (s + 1) + 1) <= done) continue;
              ready = nodes[n].at[(s + 1) * row + M + done] + times[s].link_backward;
            }
            Kind const kind = k == 0   ? Kind::forward
                              : k == 1 ? Kind::backward_input
                                       : Kind::backward_weight;
            double const end = std::max(free, ready) + times[s].of(kind);
            std::vector<double> at = nodes[n].at;
            at[S * row + r] = end;
            if (k < 2) at[s * row + k * M + done] = end;
            State const to = state + (State{1} << (3 * (3 * s + k)));
            if (hopeless(to, at)) continue;
            // Values that have been read no longer count.
            for (std::size_t q = 0; q < S; ++q) {
              std::uint8_t const f_read = count(to, q + 1 < S ? 3 * (q + 1) : 3 * q);
              for (std::uint8_t m = 0; m < f_read; ++m) at[q * row + m] = 0;
              std::uint8_t const i_read = count(to, q > 0 ? 3 * (q - 1) + 1 : 3 * q + 1);
              for (std::uint8_t m = 0; m < i_read; ++m) at[q * row + M + m] = 0;
            }
            auto& rivals = next[to];
            auto const covers = [&](std::vector<double> const& a, std::vector<double> const& b) {
              for (std::size_t x = 0; x < a.size(); ++x) {
                if (a[x] > b[x]) return false;
              }
              return true;
            };
            bool const dropped = std::any_of(rivals.begin(), rivals.end(), [&](std::size_t o) {
              return covers(nodes[o].at, at);
            });
            if (dropped) continue;
            rivals.erase(std::remove_if(rivals.begin(), rivals.end(),
                                        [&](std::size_t o) { return covers(at, nodes[o].at); }),
                         rivals.end());
            rivals.push_back(nodes.size());
            nodes.push_back({std::move(at),
                             n,
                             {.kind = kind, .stage = static_cast<int>(s), .microbatch = done}});
          }
        }
      }
    }
    if (most > 0) thin(next, most);
    layer = std::move(next);
  }
  for (auto const& [state, members] : layer) {
    for (std::size_t const n : members) {
      double end = 0;
      for (std::size_t r = 0; r < P; ++r) end = std::max(end, nodes[n].at[S * row + r]);
      if (end >= best_s) continue;
      best_s = end;
      found = n;
    }
  }
  if (found == 0) return {};
  std::vector<std::vector<Action>> rows(P);
  for (std::size_t n = found; n != 0; n = nodes[n].parent)
    rows[owner[static_cast<std::size_t>(nodes[n].action.stage)]].push_back(nodes[n].action);
  Table table{.stages = static_cast<int>(S), .microbatches = shape.microbatches};
  for (auto& one : rows) {
    table.begin_row();
    for (auto a = one.rbegin(); a != one.rend(); ++a) table.add(*a);
  }
  return table;
}

}  // namespace stagger::schedule::detail
