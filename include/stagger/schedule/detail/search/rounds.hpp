// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The published zero-bubble heuristics, as rules that the search tries beside its own.
/// @source Qi et al., "Zero Bubble Pipeline Parallelism", arXiv 2401.10241, section 3.1, with the
///         switches of the authors' generator. Limits and costs are each stage's own here.

#include <algorithm>
#include <cstddef>
#include <vector>

#include <stagger/core/grid.hpp>
#include <stagger/core/shape.hpp>
#include <stagger/schedule/limits.hpp>
#include <stagger/schedule/proof/detail/stage_times.hpp>
#include <stagger/schedule/table.hpp>

namespace stagger::schedule::detail {

/// Three switches of the authors' generator. All eight combinations are tried; the best is used.
struct RoundRule {
  bool wait_for_first = false;   ///< no forward that would still run when the first gradient comes
  bool gradients_first = false;  ///< no forward where the next rank has two and will be late
  bool always_fill = false;      ///< a weight gradient even where idle time costs nothing
};

/// Lays a table in rounds: in round m each rank runs at most one forward, from the first rank to
/// the last, then the gradient of m, from the last to the first. Weight gradients go where a rank
/// would wait, or where a forward needs room. One stage on each rank.
class Rounds {
 public:
  Rounds(Shape shape, Times const& times, Limits const& limits, RoundRule rule, double best_s)
      : P_(shape.ranks),
        M_(shape.microbatches),
        times_(times),
        limits_(limits),
        rule_(rule),
        best_s_(best_s),
        ranks_(P_),
        forward_(P_, M_, -1.0),
        gradient_(P_, M_, -1.0) {
    for (Rank& rank : ranks_) rank.row.reserve(3 * static_cast<std::size_t>(M_));
  }

  /// @return an empty table where the rule ends no sooner than `best_s`, or cannot keep the limits
  [[nodiscard]] Table table() {
    begin();
    for (int m = 1; m < M_ && good_; ++m) {
      one_forward_each();
      for (int r = P_; r-- > 0 && good_;) gradient(r);
    }
    for (int r = 0; r < P_; ++r) {
      while (good_ && ranks_[r].w < M_) run(r, Kind::backward_weight);
    }
    if (!good_) return {};
    Table out = Table{.stages = P_, .microbatches = M_}.like(3 * P_ * M_);
    for (Rank const& rank : ranks_) out.add_row(rank.row);
    return out;
  }

 private:
  struct Rank {
    double free = 0, idle = 0;  // idle: since its first forward
    Occupancy occupancy{};
    int f = 0, i = 0, w = 0;
    std::vector<Action> row{};
  };

  /// When the next forward's or gradient's input is there; negative while it is not made.
  [[nodiscard]] double forward_arrives(int r) const {
    if (r == 0) return 0;
    double const made = forward_(r - 1, ranks_[r].f);
    return made < 0 ? -1 : made + times_[r].link_forward;
  }
  [[nodiscard]] double gradient_arrives(int r) const {
    if (forward_(r, ranks_[r].i) < 0) return -1;
    if (r + 1 == P_) return 0;
    double const made = gradient_(r + 1, ranks_[r].i);
    return made < 0 ? -1 : made + times_[r].link_backward;
  }

  void run(int r, Kind kind) {
    Rank& rank = ranks_[r];
    double ready = 0;
    if (kind == Kind::forward) ready = forward_arrives(r);
    if (kind == Kind::backward_input) ready = gradient_arrives(r);
    if (ready < 0) {
      good_ = false;
      return;
    }
    if (rank.f > 0 && ready > rank.free) {
      rank.idle += ready - rank.free;
      most_idle_ = std::max(most_idle_, rank.idle);
    }
    rank.free = std::max(rank.free, ready) + times_[r].of(kind);
    int m = 0;
    if (kind == Kind::forward) {
      m = rank.f++;
      forward_(r, m) = rank.free;
    } else if (kind == Kind::backward_input) {
      m = rank.i++;
      gradient_(r, m) = rank.free;
    } else {
      m = rank.w++;
    }
    rank.occupancy.run(kind, limits_);
    rank.row.push_back({.kind = kind, .stage = r, .microbatch = m});
    double const left = (M_ - rank.f) * times_[r].forward + (M_ - rank.i) * times_[r].input +
                        (M_ - rank.w) * times_[r].weight;
    good_ = rank.free + left < best_s_;
  }

  /// Weight gradients until `arrival`. One that would end later runs where the rank has no idle
  /// time to spare.
  void fill_until(int r, double arrival) {
    Rank& rank = ranks_[r];
    while (good_ && rank.w < rank.i && rank.free + times_[r].weight <= arrival)
      run(r, Kind::backward_weight);
    if (!good_ || rank.w == rank.i || rank.free >= arrival) return;
    if (rule_.always_fill || arrival - rank.free > most_idle_ - rank.idle)
      run(r, Kind::backward_weight);
  }

  /// First forwards on all ranks, as many more as fit before the first gradient, and that gradient.
  void begin() {
    for (int r = 0; r < P_ && good_; ++r) forward(r);
    Grid<int> more(P_);
    double gradient_s = ranks_[P_ - 1].free + times_[P_ - 1].input;
    for (int r = P_ - 1; r-- > 0;) {
      Occupancy occupancy = ranks_[r].occupancy;
      double free = ranks_[r].free;
      double const arrives = gradient_s + times_[r].link_backward;
      for (; 1 + more[r] < M_ && occupancy.takes(limits_); ++more[r]) {
        if (rule_.wait_for_first ? free + times_[r].forward > arrives : free >= arrives) break;
        occupancy.run(Kind::forward, limits_);
        free += times_[r].forward;
      }
      gradient_s = std::max(free, arrives) + times_[r].input;
    }
    for (int r = 1; r < P_; ++r) {
      more[r] = std::min(more[r], more[r - 1]);
      if (more[r] > 0 && more[r] == more[r - 1] && 1 + more[r] < M_) --more[r];
    }
    for (int r = 0; r < P_; ++r) {
      for (int n = 0; n < more[r] && good_; ++n) run(r, Kind::forward);
    }
    for (int r = P_; r-- > 0 && good_;) run(r, Kind::backward_input);
  }

  void one_forward_each() {
    Grid<bool> wanted(P_);
    for (int r = 0; r < P_; ++r) wanted[r] = wants_forward(r);
    for (int r = P_ - 1; r-- > 0;) wanted[r] = wanted[r] && wanted[r + 1];
    for (int r = 0; r < P_ && good_; ++r) {
      if (wanted[r]) forward(r);
    }
  }

  [[nodiscard]] bool wants_forward(int r) const {
    Rank const& rank = ranks_[r];
    if (rank.f == M_) return false;
    if (!rule_.gradients_first || r + 1 == P_ || rank.f < ranks_[r + 1].f + 2) return true;
    double const next =
        ranks_[r + 1].free + times_[r + 1].forward + times_[r + 1].input + times_[r].link_backward;
    if (rank.free >= next) return false;
    Occupancy occupancy = rank.occupancy;
    double cost = times_[r].forward;
    for (int w = rank.w; !occupancy.takes(limits_) && w < rank.i; ++w) {
      cost += times_[r].weight;
      occupancy.run(Kind::backward_weight, limits_);
    }
    return rank.free + cost <= next || next - rank.free > most_idle_ - rank.idle;
  }

  void forward(int r) {
    Rank& rank = ranks_[r];
    while (good_ && !rank.occupancy.takes(limits_)) {
      good_ = rank.w < rank.i;
      if (good_) run(r, Kind::backward_weight);
    }
    if (good_ && r > 0) fill_until(r, forward_arrives(r));
    if (good_) run(r, Kind::forward);
  }

  void gradient(int r) {
    if (r + 1 < P_) fill_until(r, gradient_arrives(r));
    while (good_ && r == 0 && ranks_[r].f == M_ && ranks_[r].w < ranks_[r].i)
      run(r, Kind::backward_weight);
    if (good_) run(r, Kind::backward_input);
  }

  int P_, M_;
  Times const& times_;
  Limits limits_;
  RoundRule rule_;
  double best_s_;
  Grid<Rank> ranks_;
  Grid<double> forward_, gradient_;  // [P][M] ends; -1: not run
  double most_idle_ = 0;
  bool good_ = true;
};

}  // namespace stagger::schedule::detail
