// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The best order of a tiny pipeline, by trying all of them.

#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>
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

/// Branch and bound where `shortest` would take too long: one stage on each rank.
///
/// All orders of rank 0, under each of them all of rank 1, and so on. Ranks without an order run
/// each microbatch as if they had nothing else to do, but never take less than their own work, and
/// a branch is left as soon as even that is no sooner than the best known.
class Branches {
 public:
  Branches(int P, int M, Costs costs, Limits limits)
      : P_(static_cast<std::size_t>(P)), M_(static_cast<std::size_t>(M)), costs_(std::move(costs)) {
    for (int r = 0; r < P; ++r) {
      orders_.emplace_back();
      for (auto const& row : orders({r}, M)) {
        if (limits.in_flight > 0 && held(row, 1) > limits.in_flight) continue;
        if (limits.memory > 0 && held(row, limits.weight_share) > limits.memory + 1e-9) continue;
        orders_.back().push_back(row);
      }
    }
    chosen_.resize(P_);
    forward_.resize(P_, std::vector<double>(M_));
    gradient_ = forward_;
  }

  /// @param cutoff  a makespan to beat
  /// @return the shortest makespan, or `cutoff` where no order is shorter
  double shortest(double cutoff) {
    best_ = cutoff;
    descend(0);
    return best_;
  }

 private:
  double link(std::size_t r) const { return costs_.of(static_cast<int>(r)).transfer_s; }

  void descend(std::size_t depth) {
    for (auto const& row : orders_[depth]) {
      chosen_[depth] = &row;
      double const s = at_least(depth + 1);
      if (s >= best_ * (1 - 1e-12)) continue;
      if (depth + 1 == P_) {
        best_ = s;
      } else {
        descend(depth + 1);
      }
    }
  }

  /// Earliest end with the first `depth` ranks in their orders; infinite where they wait for ever.
  double at_least(std::size_t depth) {
    for (std::size_t r = 0; r < depth; ++r) {
      std::fill(forward_[r].begin(), forward_[r].end(), -1.0);
      std::fill(gradient_[r].begin(), gradient_[r].end(), -1.0);
    }
    std::array<std::size_t, 8> at{};
    std::array<double, 8> free{};
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t r = 0; r < depth; ++r) {
        for (; at[r] < chosen_[r]->size(); ++at[r]) {
          Action const& a = (*chosen_[r])[at[r]];
          auto const m = static_cast<std::size_t>(a.microbatch);
          StageCosts const& c = costs_.of(static_cast<int>(r));
          double ready = 0;
          if (a.kind == Kind::forward && r > 0) {
            if (forward_[r - 1][m] < 0) break;
            ready = forward_[r - 1][m] + link(r - 1);
          }
          if (a.kind == Kind::backward_input && r + 1 < P_) {
            ready = r + 1 < depth ? gradient_[r + 1][m] : from_below(r, m);
            if (ready < 0) break;
            ready += link(r);
          }
          free[r] =
              std::max(free[r], ready) + (a.kind == Kind::forward          ? c.forward_s
                                          : a.kind == Kind::backward_input ? c.backward_input_s
                                                                           : c.backward_weight_s);
          if (a.kind == Kind::forward) forward_[r][m] = free[r];
          if (a.kind == Kind::backward_input) gradient_[r][m] = free[r];
          moved = true;
        }
      }
    }
    double end = 0;
    for (std::size_t r = 0; r < depth; ++r) {
      if (at[r] < chosen_[r]->size()) return 1e300;
      end = std::max(end, free[r]);
    }
    for (std::size_t m = 0; depth < P_ && m < M_; ++m) {
      double way = forward_[depth - 1][m] + link(depth - 1);
      for (std::size_t q = depth; q < P_; ++q) {
        StageCosts const& c = costs_.of(static_cast<int>(q));
        end = std::max(end, way + static_cast<double>(M_ - m) *
                                      (c.forward_s + c.backward_input_s + c.backward_weight_s));
        way += c.forward_s + link(q);
      }
    }
    return end;
  }

  /// When the rank behind r, which has no order yet, can have the gradient of microbatch m: each
  /// rank further on does the forwards and gradients of k to m between the arrival of k and then.
  double from_below(std::size_t r, std::size_t m) const {
    double latest = -1;
    for (std::size_t k = 0; k <= m; ++k) {
      if (forward_[r][k] < 0) return -1;
      double way = forward_[r][k] + link(r), back = 0;
      for (std::size_t q = r + 1; q < P_; ++q) {
        StageCosts const& c = costs_.of(static_cast<int>(q));
        double const work = static_cast<double>(m - k + 1) * (c.forward_s + c.backward_input_s);
        latest = std::max(latest, way + work + back);
        way += c.forward_s + link(q);
        back += c.backward_input_s + link(q);
      }
    }
    return latest;
  }

  std::size_t P_, M_;
  Costs costs_;
  std::vector<std::vector<std::vector<Action>>> orders_;  // [ranks]
  std::vector<std::vector<Action> const*> chosen_;        // [ranks]
  std::vector<std::vector<double>> forward_, gradient_;  // [ranks][microbatches] ends; -1 not known
  double best_ = 0;
};

}  // namespace brute_force
