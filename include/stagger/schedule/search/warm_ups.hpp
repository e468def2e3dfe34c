// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The shortest of all tables of 1F1B and Seq1F1B: every gap under every in-flight limit,
///         without playing most of them.
/// @source Warm-ups: Fan et al., "DAPPLE", PPoPP 2021, section 3; Ao et al., "Seq1F1B", arXiv
///         2406.03488. Bounding whole ranges of them at once is our own.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

#include <stagger/schedule/limits.hpp>
#include <stagger/schedule/one_f_one_b.hpp>
#include <stagger/schedule/proof/play.hpp>

namespace stagger::schedule::detail {

/// One stage on each rank, N units (microbatches, or slices of them), each backward as I and W side
/// by side. Rank r runs c_r forwards before its first backward, then backward and forward in turn;
/// with gap g and depth D
///
///   c_r = min(g(P - 1 - r) + S, D + S - 1 - r, N).
///
/// That is Seq1F1B with g = 1, and 1F1B with S = 1: D is its in-flight limit where that is at least
/// P. Smaller limits have counts that OneFOneB finds.
///
/// c never falls with g or D. For counts between `low` and `high`, forward n comes behind backward
/// n - high and backward k behind forward k + low - 1, at least: played with these two orders
/// beside each other, no unit ends later than in any table between them. A range that cannot beat
/// what is known is left as a whole, any other cut in two.
class WarmUps {
 public:
  using Counts = std::vector<int>;

  /// @param times  [P] of a unit
  WarmUps(Shape shape, int slices, std::vector<StageTimes> const& times, Limits const& limits)
      : P_(static_cast<std::size_t>(shape.ranks)),
        N_(static_cast<std::size_t>(shape.microbatches)),
        shape_(shape),
        slices_(slices),
        times_(times),
        forward_(P_ * N_, 0.0),
        up_(P_, 0.0),
        down_(P_, 0.0),
        last_(P_, 0.0),
        head_(P_, 0.0),
        tail_(P_, 0.0) {
    double most = limits.memory > 0 ? std::floor(limits.memory + 1e-9) : shape.microbatches;
    if (limits.in_flight > 0) most = std::min<double>(most, limits.in_flight);
    room_ = static_cast<int>(std::min<double>(most, shape.microbatches));
    for (std::size_t r = 0; r < P_; ++r) {
      tail_[r] = times[r].weight;
      if (r == 0) continue;
      head_[r] = head_[r - 1] + times[r - 1].forward + times[r].link_forward;
      tail_[r] = std::max(tail_[r], times[r - 1].link_backward + times[r - 1].input + tail_[r - 1]);
    }
  }

  /// Plays one gap without a depth.
  /// @param best_s  a makespan to beat; the new one where it is beaten
  /// @return the counts, empty where it does not or does not fit
  [[nodiscard]] Counts gap(int wanted, double& best_s) {
    Counts c = counts(wanted, deepest());
    if (c[0] > room_) return {};
    double const s = at_least(c, c, best_s);
    if (s >= best_s) return {};
    best_s = s;
    return c;
  }

  /// The shortest of all.
  /// @param best_s  a makespan to beat; the new one where it is beaten
  /// @return its counts, empty where none beats it
  [[nodiscard]] Counts shortest(double& best_s) {
    Counts best;
    for (std::size_t r = 0; r < P_; ++r) {
      StageTimes const& t = times_[r];
      double const work = static_cast<double>(N_) * (t.forward + t.input + t.weight);
      if (head_[r] + work - t.weight + tail_[r] >= best_s) return best;
    }
    int const whole = shape_.microbatches;
    int const depth = room_ >= whole ? deepest() : room_ - slices_ + 1;
    if (depth >= shape_.ranks) {
      int const widest = shape_.ranks > 1 ? std::max(1, whole - slices_) : 1;
      ranges({1, widest, shape_.ranks, depth}, best, best_s);
    }
    if (slices_ == 1) shallow(best, best_s);
    return best;
  }

 private:
  struct Range {
    int first_gap, last_gap, first_depth, last_depth;
  };

  /// A depth that leaves all counts as they are.
  [[nodiscard]] int deepest() const { return shape_.microbatches + shape_.ranks - slices_; }

  [[nodiscard]] Counts counts(int gap, int depth) const {
    Counts c(P_, 0);
    for (int r = 0; r < shape_.ranks; ++r) {
      long long const wide = static_cast<long long>(gap) * (shape_.ranks - 1 - r) + slices_;
      c[static_cast<std::size_t>(r)] = static_cast<int>(
          std::min<long long>({wide, depth + slices_ - 1 - r, shape_.microbatches}));
    }
    return c;
  }

  void ranges(Range const& all, Counts& best, double& best_s) {
    std::vector<Range> left{all};
    while (!left.empty()) {
      Range const r = left.back();
      left.pop_back();
      Counts const low = counts(r.first_gap, r.first_depth);
      Counts const high = counts(r.last_gap, r.last_depth);
      double const s = at_least(low, high, best_s);
      if (s >= best_s * (1 - (low == high ? 0 : 1e-12))) continue;
      if (low == high) {
        best_s = s;
        best = low;
        continue;
      }
      // Where the counts differ more.
      bool const gaps =
          r.first_gap < r.last_gap &&
          (r.first_depth == r.last_depth || counts(r.first_gap, r.last_depth)[0] - low[0] <
                                                counts(r.last_gap, r.first_depth)[0] - low[0]);
      Range less = r, more = r;
      if (gaps) {
        less.last_gap = r.first_gap + (r.last_gap - r.first_gap) / 2;
        more.first_gap = less.last_gap + 1;
      } else {
        less.last_depth = r.first_depth + (r.last_depth - r.first_depth) / 2;
        more.first_depth = less.last_depth + 1;
      }
      left.push_back(more);
      left.push_back(less);
    }
  }

  /// In-flight limits below P, where the gap does not matter.
  void shallow(Counts& best, double& best_s) {
    Counts const low(P_, 1);
    for (int depth = std::min({room_, shape_.ranks - 1, shape_.microbatches - 1}); depth >= 1;
         --depth) {
      Counts high(P_, depth);
      for (int r = 0; r < shape_.ranks; ++r) {
        int& c = high[static_cast<std::size_t>(r)];
        c = std::min(c, shape_.ranks - r);
      }
      if (at_least(low, high, best_s) >= best_s * (1 - 1e-12))
        return;  // nor can anything shallower
      Counts const c = OneFOneB{.in_flight = depth}.warm_up_counts(shape_);
      double const s = at_least(c, c, best_s);
      if (s >= best_s) continue;
      best_s = s;
      best = c;
    }
  }

  [[nodiscard]] double at_least(Counts const& low, Counts const& high, double enough) {
    return low == high ? play<true>(low, high, enough) : play<false>(low, high, enough);
  }

  /// A makespan that no table with counts from `low` to `high` beats, and that of the table where
  /// they are the same. May stop as soon as it is no less than `enough`.
  ///
  /// Between them, what a rank has done when an action begins is known within bounds. So if an
  /// earlier action begins at t, with at most x seconds of work before it, and a later one has at
  /// least y, that one begins no sooner than t - x + y: `up` and `down` hold the largest t - x of
  /// what comes before the next forward and before the next backward.
  template <bool Same> double play(Counts const& low, Counts const& high, double enough) {
    double* const made = forward_.data();  // [P][N] ends of forwards
    auto const forward = [&](std::size_t r, std::size_t n) {
      StageTimes const& t = times_[r];
      double const ready = r > 0 ? made[(r - 1) * N_ + n] + t.link_forward : 0.0;
      auto const l = static_cast<std::size_t>(low[r]), h = static_cast<std::size_t>(high[r]);
      if constexpr (Same) {
        up_[r] = made[r * N_ + n] = std::max(up_[r], ready) + t.forward;
      } else {
        double const both = t.input + t.weight, f = static_cast<double>(n) * t.forward;
        double const sure = f + (n + 1 > h ? static_cast<double>(n + 1 - h) * both : 0.0);
        double const most = f + (n + 1 > l ? static_cast<double>(n + 1 - l) * both : 0.0);
        double const start = std::max({up_[r] + sure, ready, n > 0 ? made[r * N_ + n - 1] : 0.0});
        up_[r] = std::max(up_[r], start - most);
        made[r * N_ + n] = start + t.forward;
      }
    };
    for (std::size_t r = 0; r < P_; ++r) {
      up_[r] = down_[r] = Same ? 0 : head_[r];
      last_[r] = 0;
      for (std::size_t n = 0; n < static_cast<std::size_t>(high[r]); ++n) forward(r, n);
      if constexpr (!Same) {
        for (int n = 0; n + 1 < low[r]; ++n) account(r, static_cast<std::size_t>(n), low[r]);
      }
    }
    constexpr std::size_t look = 16;  // units between two looks at what is left
    std::size_t first = 0;            // rank with forwards left
    for (std::size_t k = 0; k < N_; ++k) {
      double gradient = 0;
      for (std::size_t r = P_; r-- > 0;) {
        StageTimes const& t = times_[r];
        double const both = t.input + t.weight;
        double start = gradient + (r + 1 < P_ ? t.link_backward : 0.0);
        std::size_t const needs = std::min(k + static_cast<std::size_t>(low[r]), N_);
        if constexpr (Same) {
          start = std::max(start, up_[r]);
          gradient = start + t.input;
          up_[r] = gradient + t.weight;
          last_[r] = up_[r];
        } else {
          account(r, needs - 1, low[r]);
          double const b = static_cast<double>(k) * both;
          std::size_t const could = std::min(k + static_cast<std::size_t>(high[r]), N_);
          start = std::max({start, last_[r], made[r * N_ + needs - 1],
                            down_[r] + b + static_cast<double>(needs) * t.forward});
          double const debt = start - b - static_cast<double>(could) * t.forward;
          down_[r] = std::max(down_[r], debt);
          up_[r] = std::max(up_[r], debt);
          gradient = start + t.input;
          last_[r] = gradient + t.weight;
        }
        if (k % look == 0) {
          std::size_t const past =
              Same ? needs : std::min(k + static_cast<std::size_t>(high[r]), N_);
          double const left =
              static_cast<double>(N_ - 1 - k) * both + static_cast<double>(N_ - past) * t.forward;
          if (last_[r] + left + tail_[r] - t.weight >= enough) return enough;
        }
      }
      while (first < P_ && static_cast<std::size_t>(high[first]) + k >= N_) ++first;
      for (std::size_t r = first; r < P_; ++r) forward(r, static_cast<std::size_t>(high[r]) + k);
    }
    double last = 0;
    for (double const end : last_) last = std::max(last, end);
    return last;
  }

  /// Forward n comes before the next backward.
  void account(std::size_t r, std::size_t n, int low) {
    StageTimes const& t = times_[r];
    double const f = static_cast<double>(n + 1) * t.forward;
    auto const l = static_cast<std::size_t>(low);
    double const b = n + 1 > l ? static_cast<double>(n + 1 - l) * (t.input + t.weight) : 0.0;
    down_[r] = std::max(down_[r], forward_[r * N_ + n] - f - b);
  }

  std::size_t P_, N_;
  Shape shape_;
  int slices_;
  std::vector<StageTimes> const& times_;
  std::vector<double> forward_;      // [P * N]
  std::vector<double> up_, down_;    // [P] see `play`; of one table: when the rank is free
  std::vector<double> last_;         // [P] end of the last backward
  std::vector<double> head_, tail_;  // [P] before its first forward; from its last I's end on
  int room_ = 0;                     // most units on a rank
};

}  // namespace stagger::schedule::detail
