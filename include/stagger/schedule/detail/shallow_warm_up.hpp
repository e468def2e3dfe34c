// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The search for the warm-up of 1F1B under an in-flight limit of fewer microbatches than
///         there are ranks.

#include <limits>

#include <stagger/core/basic_algorithm.hpp>
#include <stagger/core/grid.hpp>
#include <stagger/core/shape.hpp>

namespace stagger::schedule::detail {

/// Searches the numbers of forwards before each rank's first backward that finish first at F = 1,
/// B = 2, of those that never rise from rank to rank and stay below the limit; ties go to the
/// smaller ones. It raises or lowers one rank at a time as long as that helps, and tests find the
/// result to be the best of all wherever those can be counted.
class ShallowWarmUp {
 public:
  using Counts = Grid<int>;

  /// @pre in_flight < ranks and in_flight < microbatches
  constexpr ShallowWarmUp(Shape shape, int in_flight)
      : P_(shape.ranks),
        limit_(in_flight),
        // What lies beyond the warm-up and two rounds of the steady state repeats.
        M_(std::min(shape.microbatches, 4 * P_ + 2 * limit_)),
        best_(P_) {}

  [[nodiscard]] [[gnu::cold]] constexpr Counts best() {
    // From the limit down to 1 in runs of equal counts, the longer runs first.
    int const run = P_ / limit_, longer = P_ % limit_ * (run + 1);
    for (int r = 0; r < P_; ++r) {
      int const down = r < longer ? r / (run + 1) : P_ % limit_ + (r - longer) / run;
      best_[r] = std::max(1, std::min(most(r), limit_ - down));
    }
    best_s_ = makespan(best_, std::numeric_limits<int>::max() / 2);
    climb();
    return best_;
  }

 private:
  [[nodiscard]] constexpr int most(int rank) const noexcept { return std::min(limit_, P_ - rank); }

  [[gnu::cold]] constexpr void climb() {
    // First by time alone: among equal times, the smaller counts may be a dead end of the search.
    for (bool const fewer : {false, true}) {
      for (bool better = true; better;) {
        better = false;
        for (int r = 0; r < P_; ++r) {
          for (int const by : {-1, 1}) {
            Counts counts = best_;
            counts[r] += by;
            bool const fits = counts[r] >= 1 && counts[r] <= most(r) &&
                              (r == 0 || counts[r] <= counts[r - 1]) &&
                              (r + 1 == P_ || counts[r] >= counts[r + 1]);
            if (fits && consider(counts, fewer)) better = true;
          }
        }
      }
    }
  }

  [[gnu::cold]] constexpr bool consider(Counts const& counts, bool fewer) {
    auto const sum = [](Counts const& all) {
      long long total = 0;
      for (int const k : all) total += k;
      return total;
    };
    int const s = makespan(counts, best_s_);
    if (s > best_s_ || (s == best_s_ && !(fewer && sum(counts) < sum(best_)))) return false;
    best_ = counts;
    best_s_ = s;
    return true;
  }

  /// Seconds of an iteration with these counts; stops where it is sure to end later than `enough`.
  [[nodiscard]] [[gnu::cold]] constexpr int makespan(Counts const& count, int enough) const {
    Grid<int> forward(P_, M_, 0), now(P_);  // ends
    auto const run = [&](int r, int m) {
      now[r] = std::max(now[r], r > 0 ? forward(r - 1, m) : 0) + 1;
      forward(r, m) = now[r];
    };
    for (int r = 0; r < P_; ++r) {
      for (int m = 0; m < count[r]; ++m) run(r, m);
    }
    int first = 0;  // rank with forwards left; all after it have some too
    for (int m = 0; m < M_; ++m) {
      int gradient = 0;
      for (int r = P_; r-- > 0;) now[r] = gradient = std::max(now[r], gradient) + 2;
      // Left on a rank are its own work and the last gradient's way to the first one.
      int const left = M_ - 1 - m;
      if (now[P_ - 1] + 3 * left + 2 * (P_ - 1) > enough) return enough + 1;
      if (now[0] + 2 * left + std::max(0, M_ - count[0] - m) > enough) return enough + 1;
      while (first < P_ && count[first] + m >= M_) ++first;
      for (int r = first; r < P_; ++r) run(r, count[r] + m);
    }
    return now[0];
  }

  int P_, limit_, M_;
  Counts best_;
  int best_s_ = 0;
};

}  // namespace stagger::schedule::detail
