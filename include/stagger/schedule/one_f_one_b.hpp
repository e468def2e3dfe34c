// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   1F1B: early backward, so that what is in flight does not grow with the number of
/// microbatches.
/// @source Fan et al., "DAPPLE", PPoPP 2021, section 3 (warm-up P_A, P_B); Narayanan et al.,
/// PipeDream-Flush, 2006.09503.
///         With the default warm-up the compute order is that of PyTorch, Megatron-LM and
///         DeepSpeed.

#include <algorithm>
#include <cstddef>
#include <limits>
#include <vector>

#include <stagger/schedule/early_backward.hpp>
#include <stagger/schedule/legal.hpp>
#include <stagger/schedule/policy.hpp>

namespace stagger::schedule {

/// How many forwards a rank runs before its first backward: gap * (P - r) - (gap - 1). A gap of
/// `Warmup{1 + n}` hides transfers that cost up to n/2 of a forward and backward.
enum class Warmup : int {
  minimal = 1,  ///< P - r, DAPPLE's P_A: for transfers that cost next to nothing
  deep = 2,     ///< 2(P - r) - 1, DAPPLE's P_B: for transfers that cost as much as compute
};

/// One forward, one backward. Bubble (P - 1)(F + B) for M >= P; peak min(M, P - r) with the minimal
/// warm-up.
struct OneFOneB {
  using policy_tag = ScheduleTag;
  static constexpr bool flushes = true;
  static constexpr bool proven = true;

  Warmup warmup = Warmup::minimal;  ///< any gap >= 1, as `Warmup{gap}`
  int in_flight = 0;  ///< most microbatches a rank may hold; 0: as many as the warm-up asks for

  /// One stage on each rank.
  [[nodiscard]] constexpr int chunks() const noexcept { return 1; }

  /// Forwards before the first backward, for each rank. Never more on a later rank, which is what
  /// keeps the ranks from waiting for each other for ever.
  ///
  /// A limit D >= P shortens the warm-up to D - r: cutting every rank to D instead would make
  /// neighbours run in convoy. A limit D < P is met by the counts up to P - r that finish first at
  /// B = 2 F, whatever the gap; ties go to the smaller counts.
  [[nodiscard]] [[gnu::cold]] constexpr std::vector<int> warm_up_counts(Shape shape) const {
    check(shape);
    int const P = shape.ranks;
    long long const gap = static_cast<int>(warmup);
    std::vector<int> count(static_cast<std::size_t>(P), 1);
    for (int r = 0; r < P; ++r) {
      long long const wanted = std::min<long long>(gap * (P - r) - (gap - 1), shape.microbatches);
      count[static_cast<std::size_t>(r)] = static_cast<int>(wanted);
    }
    if (in_flight == 0 || count[0] <= in_flight) return count;
    if (in_flight >= P) {
      for (int r = 0; r < P; ++r) {
        int& k = count[static_cast<std::size_t>(r)];
        k = std::max(1, std::min(k, in_flight - r));
      }
      return count;
    }
    return search(shape, count);
  }

  /// @param shape  any P and M, V = 1
  /// @throws Error bad_configuration
  [[nodiscard]] constexpr Table table(Shape shape) const { return rows(shape, 0, shape.ranks); }

  /// The rows of ranks first <= r < last alone, for proofs that take a table in parts.
  /// @throws Error bad_configuration
  [[nodiscard]] [[gnu::cold]] constexpr Table rows(Shape shape, int first, int last) const {
    return detail::early_backward(shape, warm_up_counts(shape), first, last);
  }

 private:
  constexpr void check(Shape shape) const {
    require_counts("1f1b", shape, 1);
    require(static_cast<int>(warmup) >= 1, "1f1b", Count::warm_up, static_cast<int>(warmup), 1,
            "a gap is at least 1");
    require(in_flight >= 0, "1f1b", Count::in_flight, in_flight, 1,
            "a limit is at least 1, or 0 for none");
  }

  /// Seconds of an iteration with these counts at F = 1, B = 2; stops where it is sure to end later
  /// than `enough`.
  [[nodiscard]] [[gnu::cold]] static constexpr int makespan(Shape shape,
                                                            std::vector<int> const& count,
                                                            int enough) {
    auto const P = static_cast<std::size_t>(shape.ranks);
    int const M = shape.microbatches;
    auto const row = static_cast<std::size_t>(M);
    std::vector<int> forward(P * row, 0), now(P, 0);  // ends
    auto const run = [&](std::size_t r, int m) {
      std::size_t const at = r * row + static_cast<std::size_t>(m);
      now[r] = std::max(now[r], r > 0 ? forward[at - row] : 0) + 1;
      forward[at] = now[r];
    };
    for (std::size_t r = 0; r < P; ++r) {
      for (int m = 0; m < count[r]; ++m) run(r, m);
    }
    std::size_t first = 0;  // rank with forwards left; all behind it have some too
    for (int m = 0; m < M; ++m) {
      int gradient = 0;
      for (std::size_t r = P; r-- > 0;) now[r] = gradient = std::max(now[r], gradient) + 2;
      // Left on a rank are its own work and the last gradient's way to the first one.
      int const left = M - 1 - m, last = shape.ranks - 1;
      if (now[P - 1] + 3 * left + 2 * last > enough) return enough + 1;
      if (now[0] + 2 * left + std::max(0, M - count[0] - m) > enough) return enough + 1;
      while (first < P && count[first] + m >= M) ++first;
      for (std::size_t r = first; r < P; ++r) run(r, count[r] + m);
    }
    return now[0];
  }

  /// The best of all counts that never rise from rank to rank and stay below the limit. Where there
  /// are more than a few thousand of them: the best that raising or lowering one rank at a time
  /// reaches, which tests find to be the best of all wherever those can be counted.
  [[nodiscard]] [[gnu::cold]] constexpr std::vector<int> search(Shape shape,
                                                                std::vector<int> wanted) const {
    for (int r = 0; r < shape.ranks; ++r) {
      int& k = wanted[static_cast<std::size_t>(r)];
      k = std::min(k, shape.ranks - r);
    }
    auto const P = static_cast<std::size_t>(shape.ranks);
    int const limit = std::min(in_flight, shape.microbatches);
    Shape probe = shape;  // what lies beyond the warm-up and two turns of the steady state repeats
    probe.microbatches = std::min(shape.microbatches, 4 * shape.ranks + 2 * limit);
    std::vector<int> best(P, 1);
    // From the limit down to 1 in runs of equal counts, the longer runs first.
    int const run = shape.ranks / limit, longer = shape.ranks % limit * (run + 1);
    for (int r = 0; r < shape.ranks; ++r) {
      int const down = r < longer ? r / (run + 1) : shape.ranks % limit + (r - longer) / run;
      int& k = best[static_cast<std::size_t>(r)];
      k = std::max(1, std::min(wanted[static_cast<std::size_t>(r)], limit - down));
    }
    int best_s = makespan(probe, best, std::numeric_limits<int>::max() / 2);
    auto const sum = [](std::vector<int> const& v) {
      long long total = 0;
      for (int const k : v) total += k;
      return total;
    };
    auto const consider = [&](std::vector<int> const& counts, bool fewer) {
      int const s = makespan(probe, counts, best_s);
      if (s < best_s || (fewer && s == best_s && sum(counts) < sum(best))) {
        best = counts;
        best_s = s;
        return true;
      }
      return false;
    };
    if (vectors(shape.ranks, limit) <= 4096) {
      std::vector<int> counts(P, 1);
      for (;;) {
        bool fits = true;
        for (std::size_t r = 0; r < P; ++r) fits = fits && counts[r] <= wanted[r];
        if (fits) consider(counts, true);
        std::size_t r = 0;  // next vector that never rises, in the order of the last digits
        while (r < P && counts[r] == (r == 0 ? limit : counts[r - 1])) ++r;
        while (r < P && r > 0 && counts[r] == counts[r - 1]) ++r;
        if (r == P) break;
        ++counts[r];
        for (std::size_t i = 0; i < r; ++i) counts[i] = counts[r];
      }
      return best;
    }
    // First by time alone: fewer counts that take as long may be a step that nothing leads on from.
    for (bool const fewer : {false, true}) {
      for (bool better = true; better;) {
        better = false;
        for (std::size_t r = 0; r < P; ++r) {
          for (int const by : {-1, 1}) {
            std::vector<int> counts = best;
            counts[r] += by;
            bool const fits = counts[r] >= 1 && counts[r] <= std::min(wanted[r], limit) &&
                              (r == 0 || counts[r] <= counts[r - 1]) &&
                              (r + 1 == P || counts[r] >= counts[r + 1]);
            if (fits && consider(counts, fewer)) better = true;
          }
        }
      }
    }
    return best;
  }

  /// Number of vectors of P counts from 1 to limit that never rise; stops counting beyond 10^6.
  [[nodiscard]] static constexpr long long vectors(int ranks, int limit) {
    long long count = 1;
    for (int i = 1; i < limit; ++i) {
      count = count * (ranks + i) / i;
      if (count > 1000000) break;
    }
    return count;
  }
};

static_assert(SchedulePolicy<OneFOneB>);
template <> inline constexpr std::string_view catalog_name<OneFOneB> = "1f1b";

}  // namespace stagger::schedule
