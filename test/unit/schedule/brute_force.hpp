// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The best order of a tiny pipeline, by trying all of them.

#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>
#include <vector>

#include <stagger/schedule/proof/bound.hpp>

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
        [&](int, std::size_t, double, double end, double) { last = std::max(last, end); });
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

/// Depth first over all schedules of stages on any ranks: actions are started one after the other
/// in order of their start, on whichever rank, and a branch is left as soon as the work left on a
/// rank, or the way of its next microbatch to the end, is no sooner than the best known.
class Starts {
 public:
  Starts(std::vector<std::vector<int>> const& stages, int S, int M, Costs costs, Limits limits)
      : S_(static_cast<std::size_t>(S)),
        M_(static_cast<std::size_t>(M)),
        costs_(std::move(costs)),
        limits_(limits),
        owner_(S_),
        free_(stages.size(), 0),
        done_(S_, {0, 0, 0}),
        end_(S_, {std::vector<double>(M_), std::vector<double>(M_), std::vector<double>(M_)}) {
    for (std::size_t r = 0; r < stages.size(); ++r)
      for (int const s : stages[r]) owner_[static_cast<std::size_t>(s)] = r;
  }

  /// @return the shortest makespan below `cutoff`, or `cutoff` where there is none
  double shortest(double cutoff) {
    best_ = cutoff;
    go(0, 0);
    return best_;
  }

 private:
  double cost(std::size_t s, std::size_t k) const {
    StageCosts const& c = costs_.of(static_cast<int>(s));
    return k == 0 ? c.forward_s : k == 1 ? c.backward_input_s : c.backward_weight_s;
  }
  double link(std::size_t s) const {  // between stages s and s + 1
    return owner_[s] == owner_[s + 1] ? 0 : costs_.of(static_cast<int>(s)).transfer_s;
  }
  /// From the start of one action to the end of the iteration, by its own microbatch alone.
  double way(std::size_t s, std::size_t k) const {
    double sum = cost(s, k);
    if (k == 2) return sum;
    if (k == 0) return sum + (s + 1 < S_ ? link(s) + way(s + 1, 0) : way(s, 1));
    return sum + std::max(cost(s, 2), s > 0 ? link(s - 1) + way(s - 1, 1) : 0);
  }

  bool hopeless(double now) const {
    double const limit = best_ * (1 - 1e-12);
    std::vector<double> left(free_.size());
    for (std::size_t r = 0; r < left.size(); ++r) left[r] = std::max(free_[r], now);
    for (std::size_t s = 0; s < S_; ++s) {
      double const begin = std::max(free_[owner_[s]], now);
      for (std::size_t k = 0; k < 3; ++k) {
        auto const n = static_cast<double>(M_ - done_[s][k]);
        left[owner_[s]] += n * cost(s, k);
        if (n > 0 && begin + (n - 1) * cost(s, k) + way(s, k) >= limit) return true;
      }
    }
    return std::any_of(left.begin(), left.end(), [&](double end) { return end >= limit; });
  }

  bool room(std::size_t rank) const {
    double held = 0, live = 0;
    for (std::size_t s = 0; s < S_; ++s) {
      if (owner_[s] != rank) continue;
      auto const f = static_cast<double>(done_[s][0]), i = static_cast<double>(done_[s][1]),
                 w = static_cast<double>(done_[s][2]);
      held += f - i + limits_.weight_share * (i - w);
      live += f - w;
    }
    return (limits_.in_flight == 0 || live + 1 <= limits_.in_flight) &&
           (limits_.memory == 0 || held + 1 <= limits_.memory + 1e-9);
  }

  /// @param last  rank of the action started before, at `now`
  void go(double now, std::size_t last) {
    bool left = false;
    for (std::size_t s = 0; s < S_; ++s) {
      for (std::size_t k = 0; k < 3; ++k) {
        std::size_t const m = done_[s][k];
        left = left || m < M_;
        if (m == M_ || (k > 0 && m == done_[s][k - 1])) continue;
        double begin = free_[owner_[s]];
        if (k > 0) begin = std::max(begin, end_[s][k - 1][m]);
        if (k == 0 && s > 0) {
          if (done_[s - 1][0] <= m) continue;
          begin = std::max(begin, end_[s - 1][0][m] + link(s - 1));
        }
        if (k == 1 && s + 1 < S_) {
          if (done_[s + 1][1] <= m) continue;
          begin = std::max(begin, end_[s + 1][1][m] + link(s));
        }
        if (k == 0 && !room(owner_[s])) continue;
        bool const in_order = begin > now || (begin == now && owner_[s] >= last) ||
                              cost(s, k) == 0;  // what takes no time may follow at once
        if (begin < now || !in_order) continue;
        double const before = free_[owner_[s]];
        free_[owner_[s]] = end_[s][k][m] = begin + cost(s, k);
        ++done_[s][k];
        if (!hopeless(begin)) go(begin, cost(s, k) == 0 ? 0 : owner_[s]);
        --done_[s][k];
        free_[owner_[s]] = before;
      }
    }
    if (!left) best_ = *std::max_element(free_.begin(), free_.end());
  }

  std::size_t S_, M_;
  Costs costs_;
  Limits limits_;
  std::vector<std::size_t> owner_;                       // [stages]
  std::vector<double> free_;                             // [ranks]
  std::vector<std::array<std::size_t, 3>> done_;         // [stages][F, I, W]
  std::vector<std::array<std::vector<double>, 3>> end_;  // [stages][F, I, W][microbatches]
  double best_ = 0;
};

}  // namespace brute_force
