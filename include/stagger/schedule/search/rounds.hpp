// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The published zero-bubble heuristics, as rules that the search tries beside its own.
/// @source Qi et al., "Zero Bubble Pipeline Parallelism", arXiv 2401.10241, section 3.1, with the
/// switches of the authors'
///         generator. Limits and costs are each stage's own here.

#include <algorithm>
#include <cstddef>
#include <vector>

#include <stagger/schedule/search/fill.hpp>

namespace stagger::schedule::detail {

/// What the authors try both ways; the best of the eight counts.
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
  Rounds(Shape shape, std::vector<StageTimes> const& times, Limits const& limits, RoundRule rule,
         double best_s)
      : P_(static_cast<std::size_t>(shape.ranks)),
        M_(static_cast<std::size_t>(shape.microbatches)),
        times_(times),
        limits_(limits),
        rule_(rule),
        best_s_(best_s),
        ranks_(P_),
        forward_(P_ * M_, -1.0),
        gradient_(P_ * M_, -1.0) {
    for (Rank& rank : ranks_) rank.row.reserve(3 * M_);
  }

  /// @return an empty table where the rule ends no sooner than `best_s`, or cannot keep the limits
  [[nodiscard]] Table table() {
    begin();
    for (std::size_t m = 1; m < M_ && good_; ++m) {
      one_forward_each();
      for (std::size_t r = P_; r-- > 0 && good_;) gradient(r);
    }
    for (std::size_t r = 0; r < P_; ++r) {
      while (good_ && ranks_[r].w < M_) run(r, Kind::backward_weight);
    }
    if (!good_) return {};
    Table out{.stages = static_cast<int>(P_), .microbatches = static_cast<int>(M_)};
    out.actions.reserve(3 * P_ * M_);
    for (Rank const& rank : ranks_) {
      out.begin_row();
      for (Action const& a : rank.row) out.add(a);
    }
    return out;
  }

 private:
  struct Rank {
    double free = 0, idle = 0;  // idle: since its first forward
    Room room{};
    std::size_t f = 0, i = 0, w = 0;
    std::vector<Action> row{};
  };

  /// When the next forward's or gradient's input is there; negative while it is not made.
  [[nodiscard]] double forward_arrives(std::size_t r) const {
    if (r == 0) return 0;
    double const made = forward_[(r - 1) * M_ + ranks_[r].f];
    return made < 0 ? -1 : made + times_[r].link_forward;
  }
  [[nodiscard]] double gradient_arrives(std::size_t r) const {
    if (forward_[r * M_ + ranks_[r].i] < 0) return -1;
    if (r + 1 == P_) return 0;
    double const made = gradient_[(r + 1) * M_ + ranks_[r].i];
    return made < 0 ? -1 : made + times_[r].link_backward;
  }

  void run(std::size_t r, Kind kind) {
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
    std::size_t m = rank.w;
    if (kind == Kind::forward) {
      m = rank.f++;
      forward_[r * M_ + m] = rank.free;
    } else if (kind == Kind::backward_input) {
      m = rank.i++;
      gradient_[r * M_ + m] = rank.free;
    } else {
      ++rank.w;
    }
    rank.room.run(kind, limits_);
    rank.row.push_back(
        {.kind = kind, .stage = static_cast<int>(r), .microbatch = static_cast<int>(m)});
    double const left = static_cast<double>(M_ - rank.f) * times_[r].forward +
                        static_cast<double>(M_ - rank.i) * times_[r].input +
                        static_cast<double>(M_ - rank.w) * times_[r].weight;
    good_ = rank.free + left < best_s_;
  }

  /// Weight gradients until `arrival`. One that would end later runs where the rank has no idle
  /// time to spare.
  void fill_until(std::size_t r, double arrival) {
    Rank& rank = ranks_[r];
    while (good_ && rank.w < rank.i && rank.free + times_[r].weight <= arrival)
      run(r, Kind::backward_weight);
    if (!good_ || rank.w == rank.i || rank.free >= arrival) return;
    if (rule_.always_fill || arrival - rank.free > most_idle_ - rank.idle)
      run(r, Kind::backward_weight);
  }

  /// First forwards on all ranks, as many more as fit before the first gradient, and that gradient.
  void begin() {
    for (std::size_t r = 0; r < P_ && good_; ++r) forward(r);
    std::vector<std::size_t> more(P_, 0);
    double gradient_s = ranks_[P_ - 1].free + times_[P_ - 1].input;
    for (std::size_t r = P_ - 1; r-- > 0;) {
      Room room = ranks_[r].room;
      double free = ranks_[r].free;
      double const arrives = gradient_s + times_[r].link_backward;
      for (; 1 + more[r] < M_ && room.takes(limits_); ++more[r]) {
        if (rule_.wait_for_first ? free + times_[r].forward > arrives : free >= arrives) break;
        room.run(Kind::forward, limits_);
        free += times_[r].forward;
      }
      gradient_s = std::max(free, arrives) + times_[r].input;
    }
    for (std::size_t r = 1; r < P_; ++r) {
      more[r] = std::min(more[r], more[r - 1]);
      if (more[r] > 0 && more[r] == more[r - 1] && 1 + more[r] < M_) --more[r];
    }
    for (std::size_t r = 0; r < P_; ++r) {
      for (std::size_t n = 0; n < more[r] && good_; ++n) run(r, Kind::forward);
    }
    for (std::size_t r = P_; r-- > 0 && good_;) run(r, Kind::backward_input);
  }

  void one_forward_each() {
    std::vector<char> wanted(P_, 0);
    for (std::size_t r = 0; r < P_; ++r) wanted[r] = wants_forward(r) ? 1 : 0;
    for (std::size_t r = P_ - 1; r-- > 0;) wanted[r] = std::min(wanted[r], wanted[r + 1]);
    for (std::size_t r = 0; r < P_ && good_; ++r) {
      if (wanted[r] != 0) forward(r);
    }
  }

  [[nodiscard]] bool wants_forward(std::size_t r) const {
    Rank const& rank = ranks_[r];
    if (rank.f == M_) return false;
    if (!rule_.gradients_first || r + 1 == P_ || rank.f < ranks_[r + 1].f + 2) return true;
    double const next =
        ranks_[r + 1].free + times_[r + 1].forward + times_[r + 1].input + times_[r].link_backward;
    if (rank.free >= next) return false;
    Room room = rank.room;
    double cost = times_[r].forward;
    for (std::size_t w = rank.w; !room.takes(limits_) && w < rank.i; ++w) {
      cost += times_[r].weight;
      room.run(Kind::backward_weight, limits_);
    }
    return rank.free + cost <= next || next - rank.free > most_idle_ - rank.idle;
  }

  void forward(std::size_t r) {
    Rank& rank = ranks_[r];
    while (good_ && !rank.room.takes(limits_)) {
      good_ = rank.w < rank.i;
      if (good_) run(r, Kind::backward_weight);
    }
    if (good_ && r > 0) fill_until(r, forward_arrives(r));
    if (good_) run(r, Kind::forward);
  }

  void gradient(std::size_t r) {
    if (r + 1 < P_) fill_until(r, gradient_arrives(r));
    while (good_ && r == 0 && ranks_[r].f == M_ && ranks_[r].w < ranks_[r].i)
      run(r, Kind::backward_weight);
    if (good_) run(r, Kind::backward_input);
  }

  std::size_t P_, M_;
  std::vector<StageTimes> const& times_;
  Limits limits_;
  RoundRule rule_;
  double best_s_;
  std::vector<Rank> ranks_;
  std::vector<double> forward_, gradient_;  // [P * M] ends; -1: not run
  double most_idle_ = 0;
  bool good_ = true;
};

}  // namespace stagger::schedule::detail
