// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The search for the warm-up of 1F1B or Seq1F1B whose table is shortest, over every gap
///         under every in-flight limit.
/// @source Warm-ups: Fan et al., "DAPPLE", PPoPP 2021, section 3; Ao et al., "Seq1F1B", arXiv
///         2406.03488. Bounding whole ranges of them at once is our own.

#include <algorithm>
#include <cmath>
#include <vector>

#include <stagger/core/grid.hpp>
#include <stagger/core/shape.hpp>
#include <stagger/schedule/limits.hpp>
#include <stagger/schedule/one_f_one_b.hpp>
#include <stagger/schedule/proof/detail/stage_times.hpp>

namespace stagger::schedule::detail {

/// One stage on each rank, N units (microbatches, or slices of them), each backward as I and W side
/// by side. Rank r runs c_r forwards before its first backward, then one backward and one forward,
/// again and again; with gap g and depth D
///
///   c_r = min(g(P - 1 - r) + S, D + S - 1 - r, N).
///
/// That is Seq1F1B with g = 1, and 1F1B with S = 1: D is its in-flight limit where that is at least
/// P. Smaller limits have counts that OneFOneB finds.
///
/// c never falls with g or D. For counts between `low` and `high`, forward n comes after backward
/// n - high and backward k after forward k + low - 1, at least: played with these two orders
/// beside each other, no unit ends later than in any table between them. A range that cannot beat
/// what is known is left out as a whole, any other is cut in two.
class WarmUps {
 public:
  using Counts = Grid<int>;

  /// @param times  [P] of a unit
  WarmUps(Shape shape, int slices, Times const& times, Limits const& limits)
      : P_(shape.ranks),
        N_(shape.microbatches),
        slices_(slices),
        times_(times),
        ends_(P_, N_, 0.0),
        ranks_(P_) {
    double most = limits.memory > 0 ? std::floor(limits.memory + 1e-9) : N_;
    if (limits.in_flight > 0) most = std::min<double>(most, limits.in_flight);
    most_units_ = static_cast<int>(std::min<double>(most, N_));
    for (int r = 0; r < P_; ++r) {
      Rank& rank = ranks_[r];
      rank.tail = times[r].weight;
      if (r == 0) continue;
      rank.head = ranks_[r - 1].head + times[r - 1].forward + times[r].link_forward;
      rank.tail =
          std::max(rank.tail, times[r - 1].link_backward + times[r - 1].input + ranks_[r - 1].tail);
    }
  }

  /// Plays one gap without a depth.
  /// @param best_s  a makespan to beat; the new one where it is beaten
  /// @return the counts, empty where it does not or does not fit
  [[nodiscard]] Counts gap(int wanted, double& best_s) {
    Counts c = counts(wanted, deepest());
    if (c[0] > most_units_) return {};
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
    for (int r = 0; r < P_; ++r) {
      StageTimes const& t = times_[r];
      double const work = N_ * (t.forward + t.input + t.weight);
      if (ranks_[r].head + work - t.weight + ranks_[r].tail >= best_s) return best;
    }
    int const depth = most_units_ >= N_ ? deepest() : most_units_ - slices_ + 1;
    if (depth >= P_) {
      int const widest = P_ > 1 ? std::max(1, N_ - slices_) : 1;
      search({1, widest, P_, depth}, best, best_s);
    }
    if (slices_ == 1) search_shallow(best, best_s);
    return best;
  }

 private:
  struct Range {
    int first_gap, last_gap, first_depth, last_depth;
  };
  struct Rank {
    double head = 0, tail = 0;  // seconds before its first forward, and from its last I's end on
    double up = 0, down = 0;    // see `play`; of one table: when the rank is free
    double last = 0;            // end of the last backward
  };

  /// A depth that leaves all counts as they are.
  [[nodiscard]] int deepest() const { return N_ + P_ - slices_; }

  [[nodiscard]] Counts counts(int gap, int depth) const {
    Counts c(P_);
    for (int r = 0; r < P_; ++r) {
      long long const wide = static_cast<long long>(gap) * (P_ - 1 - r) + slices_;
      c[r] = static_cast<int>(std::min<long long>({wide, depth + slices_ - 1 - r, N_}));
    }
    return c;
  }

  void search(Range const& all, Counts& best, double& best_s) {
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
  void search_shallow(Counts& best, double& best_s) {
    Counts const low(P_, 1);
    for (int depth = std::min({most_units_, P_ - 1, N_ - 1}); depth >= 1; --depth) {
      Counts counts(P_);
      for (int r = 0; r < P_; ++r) counts[r] = std::min(depth, P_ - r);
      // If this depth cannot win, no smaller depth can.
      if (at_least(low, counts, best_s) >= best_s * (1 - 1e-12)) return;
      auto const found = OneFOneB{.in_flight = depth}.warm_up_counts({P_, N_});
      std::copy(found.begin(), found.end(), counts.begin());
      double const s = at_least(counts, counts, best_s);
      if (s >= best_s) continue;
      best_s = s;
      best = counts;
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
    auto const forward = [&](int r, int n) {
      StageTimes const& t = times_[r];
      Rank& rank = ranks_[r];
      double const ready = r > 0 ? ends_(r - 1, n) + t.link_forward : 0.0;
      if constexpr (Same) {
        rank.up = ends_(r, n) = std::max(rank.up, ready) + t.forward;
      } else {
        double const both = t.input + t.weight, f = n * t.forward;
        double const sure = f + std::max(0, n + 1 - high[r]) * both;
        double const most = f + std::max(0, n + 1 - low[r]) * both;
        double const start = std::max({rank.up + sure, ready, n > 0 ? ends_(r, n - 1) : 0.0});
        rank.up = std::max(rank.up, start - most);
        ends_(r, n) = start + t.forward;
      }
    };
    for (int r = 0; r < P_; ++r) {
      Rank& rank = ranks_[r];
      rank.up = rank.down = Same ? 0 : rank.head;
      rank.last = 0;
      for (int n = 0; n < high[r]; ++n) forward(r, n);
      if constexpr (!Same) {
        for (int n = 0; n + 1 < low[r]; ++n) comes_before_backward(r, n, low[r]);
      }
    }
    constexpr int look = 16;  // units between two looks at what is left
    int first = 0;            // rank with forwards left
    for (int k = 0; k < N_; ++k) {
      double gradient = 0;
      for (int r = P_; r-- > 0;) {
        StageTimes const& t = times_[r];
        Rank& rank = ranks_[r];
        double const both = t.input + t.weight;
        double start = gradient + (r + 1 < P_ ? t.link_backward : 0.0);
        int const needs = std::min(k + low[r], N_), could = std::min(k + high[r], N_);
        if constexpr (Same) {
          start = std::max(start, rank.up);
          gradient = start + t.input;
          rank.last = rank.up = gradient + t.weight;
        } else {
          comes_before_backward(r, needs - 1, low[r]);
          double const b = k * both;
          start =
              std::max({start, rank.last, ends_(r, needs - 1), rank.down + b + needs * t.forward});
          double const debt = start - b - could * t.forward;
          rank.down = std::max(rank.down, debt);
          rank.up = std::max(rank.up, debt);
          gradient = start + t.input;
          rank.last = gradient + t.weight;
        }
        if (k % look == 0) {
          double const left = (N_ - 1 - k) * both + (N_ - could) * t.forward;
          if (rank.last + left + rank.tail - t.weight >= enough) return enough;
        }
      }
      while (first < P_ && high[first] + k >= N_) ++first;
      for (int r = first; r < P_; ++r) forward(r, high[r] + k);
    }
    double last = 0;
    for (Rank const& rank : ranks_) last = std::max(last, rank.last);
    return last;
  }

  /// Forward n comes before the next backward.
  void comes_before_backward(int r, int n, int low) {
    StageTimes const& t = times_[r];
    double const f = (n + 1) * t.forward;
    double const b = std::max(0, n + 1 - low) * (t.input + t.weight);
    ranks_[r].down = std::max(ranks_[r].down, ends_(r, n) - f - b);
  }

  int P_, N_;
  int slices_;
  Times const& times_;
  Grid<double> ends_;  // [P][N] of forwards
  Grid<Rank> ranks_;
  int most_units_ = 0;  // most units on a rank
};

}  // namespace stagger::schedule::detail
