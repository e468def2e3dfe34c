// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The shortest makespan of a small pipeline, by dynamic programming over how far each rank
/// is.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include <stagger/schedule/fill.hpp>

namespace stagger::schedule::detail {

/// Searches all orders of F, I and W with one stage on each rank, microbatches in order.
///
/// How far each rank is names a state; two partial schedules in one state are compared by when
/// ranks become free and when the values not read yet arrive, and the one that is later in all of
/// that is dropped. Exact, since what is later in all can never end sooner.
/// @param shape   P <= 5 and M <= 15
/// @param best_s  a makespan to beat; the shortest one afterwards
/// @return the table that beats it, or an empty one where none does
[[nodiscard]] inline Table exact(Shape shape, std::vector<StageTimes> const& times,
                                 Limits const& limits, double& best_s) {
  auto const P = static_cast<std::size_t>(shape.ranks);
  auto const M = static_cast<std::uint8_t>(shape.microbatches);
  struct Node {
    std::vector<double> at;  // [3 * M * P]: ends of F and of I, then when the rank is free
    std::size_t parent;
    Action action;
  };
  using State = std::uint64_t;  // f, i, w of each rank, four bits each
  auto const count = [](State state, std::size_t which) {
    return static_cast<std::uint8_t>(state >> (4 * which) & 15);
  };
  std::vector<Node> nodes;
  std::map<State, std::vector<std::size_t>> layer;
  std::size_t const row = 2 * static_cast<std::size_t>(M) + 1;
  nodes.push_back({std::vector<double>(P * row, 0.0), 0, {}});
  layer[0] = {0};
  std::size_t found = 0;

  auto const tail =
      [&](std::size_t r) {  // from an I on rank r to the end of the iteration, at least
        double sum = times[r].weight;
        double way = 0;
        for (std::size_t q = r; q-- > 0;) {
          way += times[q].link_backward + times[q].input;
          sum = std::max(sum, way + times[q].weight);
        }
        return sum;
      };
  std::vector<double> tails(P, 0.0);
  for (std::size_t r = 0; r < P; ++r) tails[r] = tail(r);

  for (std::size_t step = 0; step < 3 * P * M; ++step) {
    std::map<State, std::vector<std::size_t>> next;
    for (auto const& [state, members] : layer) {
      for (std::size_t const n : members) {
        for (std::size_t r = 0; r < P; ++r) {
          for (std::size_t k = 0; k < 3; ++k) {
            std::uint8_t const done = count(state, 3 * r + k);
            if (done == M || (k > 0 && done == count(state, 3 * r + k - 1))) continue;
            double const free = nodes[n].at[r * row + 2 * M];
            double ready = 0;
            if (k == 0) {
              int const released = count(state, 3 * r + 2);
              int const live = done - released, waiting = count(state, 3 * r + 1) - released;
              Room const room{.held = (live - waiting) + limits.weight_share * waiting,
                              .live = live};
              if (!room.takes(limits)) continue;
              if (r > 0) {
                if (count(state, 3 * (r - 1)) <= done) continue;
                ready = nodes[n].at[(r - 1) * row + done] + times[r].link_forward;
              }
            } else if (k == 1 && r + 1 < P) {
              if (count(state, 3 * (r + 1) + 1) <= done) continue;
              ready = nodes[n].at[(r + 1) * row + M + done] + times[r].link_backward;
            }
            Kind const kind = k == 0   ? Kind::forward
                              : k == 1 ? Kind::backward_input
                                       : Kind::backward_weight;
            double const end = std::max(free, ready) + times[r].of(kind);
            std::vector<double> at = nodes[n].at;
            at[r * row + 2 * M] = end;
            if (k < 2) at[r * row + k * M + done] = end;
            State const to = state + (State{1} << (4 * (3 * r + k)));
            // What is left to do on each rank cannot end before the best so far: not worth going
            // on.
            bool hopeless = false;
            for (std::size_t q = 0; q < P && !hopeless; ++q) {
              int const no_input = M - count(to, 3 * q + 1);
              double const left = (M - count(to, 3 * q)) * times[q].forward +
                                  no_input * times[q].input +
                                  (M - count(to, 3 * q + 2)) * times[q].weight;
              hopeless = at[q * row + 2 * M] + left >= best_s;
              if (no_input > 0)
                hopeless = hopeless ||
                           at[q * row + 2 * M] + no_input * times[q].input + tails[q] >= best_s;
            }
            if (hopeless) continue;
            // Values that have been read no longer count.
            for (std::size_t q = 0; q < P; ++q) {
              std::uint8_t const f_read = count(to, q + 1 < P ? 3 * (q + 1) : 3 * q);
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
                             {.kind = kind, .stage = static_cast<int>(r), .microbatch = done}});
          }
        }
      }
    }
    layer = std::move(next);
  }
  for (auto const& [state, members] : layer) {
    for (std::size_t const n : members) {
      double end = 0;
      for (std::size_t r = 0; r < P; ++r) end = std::max(end, nodes[n].at[r * row + 2 * M]);
      if (end >= best_s) continue;
      best_s = end;
      found = n;
    }
  }
  if (found == 0) return {};
  std::vector<std::vector<Action>> rows(P);
  for (std::size_t n = found; n != 0; n = nodes[n].parent)
    rows[static_cast<std::size_t>(nodes[n].action.stage)].push_back(nodes[n].action);
  Table table{.stages = shape.ranks, .microbatches = shape.microbatches};
  for (auto& one : rows) {
    table.begin_row();
    for (auto a = one.rbegin(); a != one.rend(); ++a) table.add(*a);
  }
  return table;
}

}  // namespace stagger::schedule::detail
