// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   List scheduling: each rank, whenever it is free, runs the action that a rule likes best
/// among those whose
///         inputs have arrived. What several policies and the search build on.

#include <algorithm>
#include <cstddef>
#include <vector>

#include <stagger/core/shape.hpp>
#include <stagger/schedule/costs.hpp>
#include <stagger/schedule/table.hpp>

namespace stagger::schedule::detail {

/// A stage on a rank, for a range of microbatches. Bidirectional tables have two lanes for each
/// stage, all others one.
struct Lane {
  int rank = 0, stage = 0;
  int first = 0, last = 0;     ///< microbatches first <= m < last
  int below = -1, above = -1;  ///< lanes of the stages before and after; -1 at the ends
  int window = 0;              ///< at the first stage: most microbatches in flight; 0: no limit
  int forwards = 0, backwards = 0, weights = 0;  ///< how many of each have been started
};

/// A ready action with what rules decide by.
struct Candidate {
  Kind kind = Kind::forward;
  std::size_t lane = 0;
  int microbatch = 0;
  double ready_s = 0;  ///< when its input arrived
};

/// Appends the lanes of a chain of stages, stage s on rank `owner(s)`, for microbatches first <= m
/// < last.
template <class Owner>
constexpr void add_lanes(std::vector<Lane>& all, int stages, int first, int last, int window,
                         Owner owner) {
  int const base = static_cast<int>(all.size());
  for (int s = 0; s < stages; ++s) {
    all.push_back({.rank = owner(s),
                   .stage = s,
                   .first = first,
                   .last = last,
                   .below = s > 0 ? base + s - 1 : -1,
                   .above = s + 1 < stages ? base + s + 1 : -1,
                   .window = window});
  }
}

/// Which actions a list holds: forwards alone, or with backwards whole (B) or split (I and W).
enum class Backwards { none, whole, split };

/// Lists all actions of all lanes.
/// @param better  better(a, b, lanes): is candidate a to run before b?
/// Complexity: O(log P) per action, and O(V) to choose it.
template <class Better>
[[nodiscard]] constexpr Table greedy(std::vector<Lane> all, Shape shape, Costs const& costs,
                                     Backwards backwards, Better better) {
  int const ranks = shape.ranks;
  bool const split = backwards == Backwards::split;
  auto const P = static_cast<std::size_t>(ranks);
  std::vector<std::vector<std::size_t>> mine(P, std::vector<std::size_t>{});
  std::vector<std::size_t> base(all.size(), 0);  // of a lane's microbatches in the arrays of times
  std::size_t total = 0;
  for (std::size_t l = 0; l < all.size(); ++l) {
    mine[static_cast<std::size_t>(all[l].rank)].push_back(l);
    base[l] = total;
    total += static_cast<std::size_t>(all[l].last - all[l].first);
  }
  std::vector<double> forward_at(total, -1.0),
      backward_at(total, -1.0);  // arrival of inputs; -1: not known
  std::vector<std::vector<Action>> rows(P, std::vector<Action>{});
  std::vector<double> free(P, 0.0);

  struct Wake {
    double at;
    std::size_t rank;
  };
  std::vector<Wake> heap;
  auto const later = [](Wake const& a, Wake const& b) {
    return a.at > b.at || (a.at == b.at && a.rank > b.rank);
  };
  auto const wake = [&](double at, std::size_t rank) {
    heap.push_back({at, rank});
    std::push_heap(heap.begin(), heap.end(), later);
  };
  for (std::size_t l = 0; l < all.size(); ++l) {
    if (all[l].below >= 0) continue;
    int const count = all[l].last - all[l].first;
    int const at_once =
        all[l].window > 0 && backwards != Backwards::none ? std::min(count, all[l].window) : count;
    for (int n = 0; n < at_once; ++n) forward_at[base[l] + static_cast<std::size_t>(n)] = 0;
  }
  for (std::size_t r = 0; r < P; ++r) wake(0, r);

  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), later);
    double const now = heap.back().at;
    std::size_t const rank = heap.back().rank;
    heap.pop_back();
    if (free[rank] > now) continue;
    Candidate best{};
    bool found = false;
    auto const offer = [&](Candidate const& c) {
      if (found && !better(c, best, all)) return;
      best = c;
      found = true;
    };
    for (std::size_t const l : mine[rank]) {
      Lane const& lane = all[l];
      int const count = lane.last - lane.first;
      if (lane.backwards < lane.forwards) {
        double const at = backward_at[base[l] + static_cast<std::size_t>(lane.backwards)];
        if (at >= 0 && at <= now) {
          Candidate const c{split ? Kind::backward_input : Kind::backward, l,
                            lane.first + lane.backwards, at};
          offer(c);
        }
      }
      if (split && lane.weights < lane.backwards) {
        offer({Kind::backward_weight, l, lane.first + lane.weights, 0});
      }
      if (lane.forwards < count) {
        double const at = forward_at[base[l] + static_cast<std::size_t>(lane.forwards)];
        Candidate const c{Kind::forward, l, lane.first + lane.forwards, at};
        if (at >= 0 && at <= now) offer(c);
      }
    }
    if (!found) continue;
    Lane& lane = all[best.lane];
    StageCosts const& cost = costs.of(lane.stage);
    auto const n = static_cast<std::size_t>(best.microbatch - lane.first);
    rows[rank].push_back({.kind = best.kind, .stage = lane.stage, .microbatch = best.microbatch});
    double end = now;
    auto const give = [&](int to, std::vector<double>& arrival, double link) {
      Lane const& other = all[static_cast<std::size_t>(to)];
      double const at = end + (other.rank == lane.rank ? 0 : link);
      arrival[base[static_cast<std::size_t>(to)] + n] = at;
      if (other.rank != lane.rank) wake(at, static_cast<std::size_t>(other.rank));
    };
    if (best.kind == Kind::forward) {
      end += cost.forward_s;
      ++lane.forwards;
      if (lane.above >= 0) {
        give(lane.above, forward_at, cost.transfer_s);
      } else if (backwards != Backwards::none) {
        backward_at[base[best.lane] + n] = end;
      }
    } else if (best.kind == Kind::backward_weight) {
      end += cost.backward_weight_s;
      ++lane.weights;
    } else {
      end += cost.backward_input_s + (split ? 0 : cost.backward_weight_s);
      ++lane.backwards;
      if (!split) ++lane.weights;
      if (lane.below >= 0) {
        give(lane.below, backward_at, costs.of(lane.stage - 1).transfer_s);
      } else if (lane.window > 0 && static_cast<int>(n) + lane.window < lane.last - lane.first) {
        forward_at[base[best.lane] + n + static_cast<std::size_t>(lane.window)] = end;
      }
    }
    free[rank] = end;
    wake(end, rank);
  }
  Table table{.stages = shape.stages(), .microbatches = shape.microbatches};
  for (auto const& row : rows) {
    table.begin_row();
    for (Action const& a : row) table.add(a);
  }
  return table;
}

}  // namespace stagger::schedule::detail
