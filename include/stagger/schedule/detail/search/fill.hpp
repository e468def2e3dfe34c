// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   List scheduling under limits that are used to the last half of an activation, with
///         weight gradients in the gaps.
/// @source What makes a forward safe is the banker's algorithm of Dijkstra, EWD 108.

#include <algorithm>
#include <limits>
#include <vector>

#include <stagger/core/grid.hpp>
#include <stagger/core/shape.hpp>
#include <stagger/schedule/detail/wakeups.hpp>
#include <stagger/schedule/limits.hpp>
#include <stagger/schedule/proof/detail/stage_times.hpp>
#include <stagger/schedule/table.hpp>

namespace stagger::schedule::detail {

/// The rules of one run of `Fill`.
struct FillRule {
  bool alternate = false;  ///< after a gradient a forward first; else always the gradient
  bool deepest = false;    ///< of forwards that of the oldest microbatch; else of the first stage
  /// A weight gradient does not start when an input comes within this part of it.
  double wait_policy = 0;
  int window = 0;  ///< most microbatches between first forward and last gradient; 0: no limit
  /// Most forwards without their I on rank r are warm_up * (P - 1 - r) + S; 0: no limit.
  int warm_up = 0;
};

/// Rules for one stage on each rank in the order in which they help, chosen over 1200 random
/// shapes, costs and limits: each one is that which lowers the mean distance from the best of all
/// 30 most, given those before it.
[[nodiscard]] inline std::vector<FillRule> stage_rules() {
  return {{true, false, 0.0, 0, 2},  {true, false, 0.5, 0, 0},  {false, false, 0.0, 0, 0},
          {true, false, 0.5, 0, 2},  {false, false, 0.5, 0, 2}, {true, false, 0.0, 0, 1},
          {true, false, 0.0, 0, 3},  {false, false, 1.0, 0, 2}, {false, false, 0.5, 0, 1},
          {false, false, 0.0, 0, 2}, {false, false, 0.5, 0, 3}, {true, false, 0.5, 0, 4}};
}

/// Likewise for several chunks on each rank, over 400 of them; windows as parts of the number of
/// ranks P and of the limits.
/// @param stages  on each rank
[[nodiscard]] inline std::vector<FillRule> chunk_rules(int P, int stages, Limits const& limits) {
  double const most = limits.memory > 0 ? limits.memory : limits.in_flight;
  int const window = most > 0 ? static_cast<int>(std::clamp(1.5 * most / stages, 1.0, 1e9)) : 2;
  return {{true, true, 1.0, 3 * P / 4 + 1},  {true, true, 1.0, window},
          {false, true, 1.0, P / 2 + 1},     {true, false, 0.5, window},
          {true, true, 0.5, P + 1},          {false, true, 1.0, window},
          {false, true, 0.5, 5 * P / 4 + 1}, {false, false, 1.0, P / 4 + 1},
          {true, true, 0.0, 3 * P / 2 + 1},  {false, true, 1.0, 3 * P / 4 + 1},
          {true, true, 0.5, P / 2 + 1},      {true, true, 0.0, window},
          {true, false, 1.0, 5 * P / 4 + 1}, {false, true, 0.0, 0},
          {false, true, 1.0, 5 * P / 4 + 1}, {true, true, 1.0, P / 2 + 1}};
}

/// Each rank, whenever it is free, runs a gradient, a forward or a weight gradient of one of its
/// stages. A forward runs only where the microbatches begun can still come to their end one after
/// the other, so that no rank is left without the memory that its later stages need.
class Fill {
 public:
  /// @param owner   [D * stages] the rank of each stage for each of D equal parts of the
  ///                microbatches
  /// @param slices  S: M counts slices, and the gradients of a microbatch's S come from the last
  ///                rank when it has run the forwards of all
  Fill(Shape shape, Grid<int> const& owner, Times const& times, Limits const& limits,
       FillRule const& rule, int slices = 1)
      : S_(times.size()),
        D_(owner.size() / S_),
        N_(shape.microbatches / D_),
        slices_(slices),
        times_(times),
        limits_(limits),
        limited_(limits.in_flight > 0 || limits.memory > 0),
        rule_(rule),
        ranks_(shape.ranks),
        parts_(D_ * S_),
        wakeups_(shape.ranks) {
    for (int p = 0; p < parts_.size(); ++p) {
      Part& part = parts_[p];
      part.rank = owner[p];
      part.stage = p % S_;
      part.first = p / S_ * N_;
      long long ahead = N_;
      if (rule.warm_up > 0)
        ahead = static_cast<long long>(rule.warm_up) * (shape.ranks - 1 - part.rank) + slices;
      else if (rule.window > 0 && part.stage == 0)
        ahead = (rule.window + D_ - 1) / D_;
      part.most_ahead = static_cast<int>(std::min<long long>(ahead, N_));
      part.forward_at = Grid<double>(N_, part.stage == 0 ? 0.0 : -1.0);
      part.gradient_at = Grid<double>(N_, -1.0);
      StageTimes const& t = times[part.stage];
      ranks_[part.rank].parts.push_back(&part);
      ranks_[part.rank].left += N_ * (t.forward + t.input + t.weight);
    }
    for (Rank& rank : ranks_) {
      int const backwards = static_cast<int>(rank.parts.size()) * N_;
      rank.row = Grid<Action>(3 * backwards);
      rank.pending = Grid<Part*>(backwards);
    }
  }

  /// @param best_s  a makespan to beat; the new one where it is beaten
  /// @return an empty table where it is not
  [[nodiscard]] Table table(double& best_s) {
    double const hopeless = best_s * (1 + 1e-9);  // beyond what rounding can do
    double last = 0;
    while (!wakeups_.empty()) {
      auto const [now, r] = wakeups_.pop();
      Rank& rank = ranks_[r];
      if (rank.free > now || !step(rank, now)) continue;
      last = std::max(last, rank.free);
      if (last >= best_s || rank.free + rank.left >= hopeless) return {};
      wakeups_.push(rank.free, r);
    }
    Table out = Table{.stages = S_, .microbatches = D_ * N_}.like(3 * S_ * D_ * N_);
    for (Rank const& rank : ranks_) {
      if (rank.weights < rank.pending.size()) return {};
      out.add_row({rank.row.begin(), rank.row.end()});
    }
    best_s = last;
    return out;
  }

 private:
  struct Part {  // a stage for one part of the microbatches
    int rank = 0, stage = 0, first = 0;
    int most_ahead = 0;                            // forwards without their gradients
    int forwards = 0, gradients = 0, weights = 0;  // how many of each have been started
    Grid<double> forward_at{}, gradient_at{};      // [N] when inputs arrive; -1: not made
  };
  struct Rank {
    double free = 0, left = 0;  // left: seconds of what has not run
    Occupancy occupancy{};
    bool after_gradient = false;
    std::vector<Part*> parts{};
    Grid<Part*> pending{};           // of weight gradients, oldest first
    int gradients = 0, weights = 0;  // how many of them are there and have run
    Grid<Action> row{};
    int actions = 0;  // of the row
  };

  /// With one more forward of a part, can all microbatches begun on this rank run their forwards,
  /// the oldest first, each with the room that those before it give back? All ranks ask in the same
  /// order, so that the oldest of all is never stuck.
  [[nodiscard]] bool safe(Rank const& rank, Part const* more) const {
    int const weights = rank.gradients - rank.weights;
    double free = limits_.memory - rank.occupancy.held - 1 + limits_.weight_share * weights;
    int places = limits_.in_flight - rank.occupancy.live - 1 + weights;
    int oldest = N_, newest = 0;
    for (Part const* const p : rank.parts) {
      oldest = std::min(oldest, p->gradients);
      newest = std::max(newest, p->forwards + (p == more ? 1 : 0));
    }
    for (int n = oldest; n < newest; ++n) {
      for (int d = 0; d < D_; ++d) {
        int needs = 0, gives = 0;
        for (Part const* const p : rank.parts) {
          if (p->first != d * N_ || p->gradients > n) continue;
          ++(p->forwards + (p == more ? 1 : 0) <= n ? needs : gives);
        }
        if (limits_.memory > 0 && needs > free + 1e-9) return false;
        if (limits_.in_flight > 0 && needs > places) return false;
        free += gives;
        places += gives;
      }
    }
    return true;
  }

  /// Whether the next forward or gradient of a part is preferred to that of another.
  [[nodiscard]] bool before(Part const& p, Part const& other, bool forward) const {
    if (forward && !rule_.deepest) return p.stage < other.stage;
    int const n = forward ? p.forwards : p.gradients;
    int const m = forward ? other.forwards : other.gradients;
    return n < m || (n == m && p.stage > other.stage);
  }

  /// Starts the preferred action. @return false if the rank waits for an input
  bool step(Rank& rank, double now) {
    Part* forward = nullptr;
    Part* gradient = nullptr;
    double soon = std::numeric_limits<double>::infinity();  // the next input on its way
    bool full = false;
    for (Part* const p : rank.parts) {
      int const f = p->forwards, i = p->gradients;
      if (i < f) {
        double const at = p->gradient_at[i];
        if (at > now)
          soon = std::min(soon, at);
        else if (at >= 0 && (gradient == nullptr || before(*p, *gradient, false)))
          gradient = p;
      }
      if (f == N_ || f - i >= p->most_ahead) continue;
      double const at = p->forward_at[f];
      if (at < 0) continue;
      if (limited_ &&
          !(rank.occupancy.takes(limits_) && (rank.parts.size() == 1 || safe(rank, p)))) {
        full = true;
      } else if (at > now) {
        soon = std::min(soon, at);
      } else if (forward == nullptr || before(*p, *forward, true)) {
        forward = p;
      }
    }
    if (gradient != nullptr && !(rule_.alternate && rank.after_gradient && forward != nullptr)) {
      run<Kind::backward_input>(rank, *gradient, now);
    } else if (forward != nullptr) {
      run<Kind::forward>(rank, *forward, now);
    } else if (rank.weights < rank.gradients) {
      Part& part = *rank.pending[rank.weights];
      if (!full && soon < now + rule_.wait_policy * times_[part.stage].weight) return false;
      ++rank.weights;
      run<Kind::backward_weight>(rank, part, now);
    } else {
      return false;
    }
    return true;
  }

  template <Kind kind> void run(Rank& rank, Part& part, double now) {
    int const s = part.stage;
    double const cost = times_[s].of(kind), end = now + cost;
    int n = 0;
    if constexpr (kind == Kind::forward) {
      n = part.forwards++;
      rank.after_gradient = false;
      if (s + 1 < S_) {
        give((&part)[1], (&part)[1].forward_at[n], end + times_[s + 1].link_forward, part.rank);
      } else if ((n + 1) % slices_ == 0) {
        for (int back = 0; back < slices_; ++back) part.gradient_at[n - back] = end;
      }
    } else if constexpr (kind == Kind::backward_input) {
      n = part.gradients++;
      rank.after_gradient = true;
      rank.pending[rank.gradients++] = &part;
      if (s > 0)
        give((&part)[-1], (&part)[-1].gradient_at[n], end + times_[s - 1].link_backward, part.rank);
    } else {
      n = part.weights++;
    }
    rank.occupancy.run(kind, limits_);
    rank.row[rank.actions++] = {.kind = kind, .stage = s, .microbatch = part.first + n};
    rank.free = end;
    rank.left -= cost;
  }

  /// Hands a value to the stage before or after; the parts of a chain lie one after the other.
  void give(Part const& to, double& arrival, double at, int rank) {
    arrival = at;
    if (to.rank != rank) wakeups_.push(at, to.rank);
  }

  int S_, D_, N_, slices_;  // stages, parts, microbatches of a part
  Times const& times_;
  Limits limits_;
  bool limited_;
  FillRule rule_;
  Grid<Rank> ranks_;
  Grid<Part> parts_;  // [D * S]
  Wakeups wakeups_;
};

}  // namespace stagger::schedule::detail
