// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   List scheduling of several stages on each rank, within limits that are used to the last
/// half of an activation.
/// @source What makes a forward safe is the banker's algorithm of Dijkstra, EWD 108.

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

/// How one run of `FillChunks` decides.
struct ChunkRule {
  bool alternate = false;  ///< after a gradient a forward first; else always the gradient
  bool deepest = false;    ///< of forwards that of the oldest microbatch; else of the first stage
  double wait_policy =
      0;           ///< a weight gradient does not start when an input comes within this part
                   ///< of it
  int window = 0;  ///< most microbatches between first forward and last gradient; 0: no limit
};

/// Rules in the order in which they help, chosen over 400 random shapes, costs and limits; windows
/// as parts of the number of ranks P and of the limits.
/// @param stages  on each rank
[[nodiscard]] inline std::vector<ChunkRule> chunk_rules(int P, int stages, Limits const& limits) {
  double const room = limits.memory > 0 ? limits.memory : limits.in_flight;
  int const roomy = room > 0 ? std::max(1, static_cast<int>(1.5 * room / stages)) : 2;
  return {{true, true, 1.0, 3 * P / 4 + 1},  {true, true, 1.0, roomy},
          {false, true, 1.0, P / 2 + 1},     {true, false, 0.5, roomy},
          {true, true, 0.5, P + 1},          {false, true, 1.0, roomy},
          {false, true, 0.5, 5 * P / 4 + 1}, {false, false, 1.0, P / 4 + 1},
          {true, true, 0.0, 3 * P / 2 + 1},  {false, true, 1.0, 3 * P / 4 + 1},
          {true, true, 0.5, P / 2 + 1},      {true, true, 0.0, roomy},
          {true, false, 1.0, 5 * P / 4 + 1}, {false, true, 0.0, 0},
          {false, true, 1.0, 5 * P / 4 + 1}, {true, true, 1.0, P / 2 + 1}};
}

/// Each rank, whenever it is free, runs a gradient, a forward or a weight gradient of one of its
/// stages. A forward runs only where the microbatches begun can still come to their end one after
/// the other, so that no rank is left without the room that its later stages need.
class FillChunks {
 public:
  /// @param owner  [D * stages] the rank of each stage for each of D equal parts of the microbatches
  FillChunks(Shape shape, Grid<int> const& owner, Times const& times, Limits const& limits,
             ChunkRule rule)
      : S_(times.size()),
        D_(owner.size() / S_),
        N_(shape.microbatches / D_),
        owner_(owner),
        times_(times),
        limits_(limits),
        rule_(rule),
        ranks_(shape.ranks),
        parts_(D_ * S_),
        forward_at_(D_ * S_, N_, -1.0),
        gradient_at_(D_ * S_, N_, -1.0),
        wakeups_(shape.ranks) {
    for (int p = 0; p < D_ * S_; ++p) ranks_[owner[p]].parts.push_back(p);
    for (int d = 0; d < D_; ++d) {
      for (int n = 0; n < N_; ++n) forward_at_(d * S_, n) = 0;
    }
  }

  /// @return an empty table where it ends no sooner than `enough`
  [[nodiscard]] Table table(double enough) {
    while (!wakeups_.empty()) {
      auto const [now, r] = wakeups_.pop();
      if (ranks_[r].free > now) continue;
      if (step(r, now) && ranks_[r].free >= enough) return {};
    }
    Table out = Table{.stages = S_, .microbatches = D_ * N_}.like(3 * S_ * D_ * N_);
    for (Rank const& rank : ranks_) {
      if (rank.row.size() != 3 * rank.parts.size() * static_cast<unsigned>(N_)) return {};
      out.add_row(rank.row);
    }
    return out;
  }

 private:
  struct Part {  // a stage for one part of the microbatches: how many of each have been started
    int forwards = 0, gradients = 0, weights = 0;
  };
  struct Rank {
    double free = 0;
    Room room{};
    std::vector<int> parts{};    // d * S + stage
    std::vector<int> pending{};  // parts of weight gradients, oldest first
    std::size_t weighed = 0;
    bool after_gradient = false;
    std::vector<Action> row{};
  };
  static constexpr int none_ = -1;

  /// With one more forward of a part, can all microbatches begun on this rank run their forwards,
  /// the oldest first, each with the room that those before it give back? All ranks ask in the same
  /// order, so that the oldest of all is never stuck.
  [[nodiscard]] bool safe(Rank const& rank, int more) const {
    auto const weights = static_cast<int>(rank.pending.size() - rank.weighed);
    double free = limits_.memory - rank.room.held - 1 + limits_.weight_share * weights;
    int places = limits_.in_flight - rank.room.live - 1 + weights;
    int oldest = N_, newest = 0;
    for (int const p : rank.parts) {
      oldest = std::min(oldest, parts_[p].gradients);
      newest = std::max(newest, parts_[p].forwards + (p == more ? 1 : 0));
    }
    for (int n = oldest; n < newest; ++n) {
      for (int d = 0; d < D_; ++d) {
        int needs = 0, gives = 0;
        for (int const p : rank.parts) {
          if (p / S_ != d || parts_[p].gradients > n) continue;
          ++(parts_[p].forwards + (p == more ? 1 : 0) <= n ? needs : gives);
        }
        if (limits_.memory > 0 && needs > free + 1e-9) return false;
        if (limits_.in_flight > 0 && needs > places) return false;
        free += gives;
        places += gives;
      }
    }
    return true;
  }

  /// Is the next action of a part, on its n-th microbatch, better than that of another?
  [[nodiscard]] bool before(int p, int n, int other, bool forward) const {
    int const m = forward ? parts_[other].forwards : parts_[other].gradients;
    if (forward && !rule_.deepest) return p % S_ < other % S_;
    return n < m || (n == m && p % S_ > other % S_);
  }

  /// Starts what is best now.
  /// @return false where the rank waits for an input
  bool step(int r, double now) {
    Rank& rank = ranks_[r];
    int forward = none_, gradient = none_;
    double soon = -1;  // the next input on its way
    bool full = false;
    auto const comes = [&](double at) { soon = soon < 0 ? at : std::min(soon, at); };
    bool const limited = limits_.in_flight > 0 || limits_.memory > 0;
    int const window = (rule_.window + D_ - 1) / D_;
    for (int const p : rank.parts) {
      auto const& [f, i, w] = parts_[p];
      if (i < f) {
        double const at = gradient_at_(p, i);
        if (at > now) comes(at);
        if (at >= 0 && at <= now && (gradient == none_ || before(p, i, gradient, false)))
          gradient = p;
      }
      if (f == N_ || (p % S_ == 0 && window > 0 && f >= i + window)) continue;
      double const at = forward_at_(p, f);
      if (at < 0) continue;
      if (limited && !(rank.room.takes(limits_) && safe(rank, p))) {
        full = true;
      } else if (at > now) {
        comes(at);
      } else if (forward == none_ || before(p, f, forward, true)) {
        forward = p;
      }
    }
    if (gradient != none_ && !(rule_.alternate && rank.after_gradient && forward != none_)) {
      run(r, gradient, Kind::backward_input, now);
    } else if (forward != none_) {
      run(r, forward, Kind::forward, now);
    } else if (rank.weighed < rank.pending.size()) {
      int const p = rank.pending[rank.weighed];
      if (soon > 0 && !full && soon < now + rule_.wait_policy * times_[p % S_].weight) return false;
      ++rank.weighed;
      run(r, p, Kind::backward_weight, now);
    } else {
      return false;
    }
    return true;
  }

  void run(int r, int p, Kind kind, double now) {
    Rank& rank = ranks_[r];
    int const s = p % S_;
    Part& part = parts_[p];
    double const end = now + times_[s].of(kind);
    int const n = kind == Kind::forward          ? part.forwards++
                  : kind == Kind::backward_input ? part.gradients++
                                                 : part.weights++;
    auto const give = [&](int to, Grid<double>& arrival, double link) {
      arrival(to, n) = end + link;
      if (owner_[to] != r) wakeups_.push(end + link, owner_[to]);
    };
    rank.after_gradient =
        kind == Kind::backward_input || (kind == Kind::backward_weight && rank.after_gradient);
    if (kind == Kind::forward) {
      if (s + 1 < S_)
        give(p + 1, forward_at_, times_[s + 1].link_forward);
      else
        gradient_at_(p, n) = end;
    } else if (kind == Kind::backward_input) {
      rank.pending.push_back(p);
      if (s > 0) give(p - 1, gradient_at_, times_[s - 1].link_backward);
    }
    rank.room.run(kind, limits_);
    rank.row.push_back({.kind = kind, .stage = s, .microbatch = p / S_ * N_ + n});
    rank.free = end;
    wakeups_.push(end, r);
  }

  int S_, D_, N_;  // stages, parts, microbatches of a part
  Grid<int> const& owner_;
  Times const& times_;
  Limits limits_;
  ChunkRule rule_;
  Grid<Rank> ranks_;
  Grid<Part> parts_;                       // [D * S]
  Grid<double> forward_at_, gradient_at_;  // [D * S][N] when inputs arrive; -1: not made
  Wakeups wakeups_;
};

}  // namespace stagger::schedule::detail
