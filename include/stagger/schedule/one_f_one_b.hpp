// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   1F1B: backward passes start early, so that the number in flight does not grow with the
///         number of microbatches.
/// @source Fan et al., "DAPPLE", PPoPP 2021, section 3 (warm-up P_A, P_B); Narayanan et al.,
///         PipeDream-Flush, 2006.09503. With the default warm-up the compute order is that of
///         PyTorch, Megatron-LM and DeepSpeed.

#include <vector>

#include <stagger/core/basic_algorithm.hpp>
#include <stagger/schedule/detail/shallow_warm_up.hpp>
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

  Warmup warmup = Warmup::minimal;  ///< any gap >= 1, as `Warmup{gap}`
  int in_flight = 0;  ///< most microbatches a rank may hold; 0: as many as the warm-up asks for

  [[nodiscard]] constexpr int chunks() const noexcept { return 1; }

  /// Forwards before the first backward, for each rank. They never rise from rank to rank, which
  /// rules out deadlocks.
  ///
  /// A limit D >= P shortens the warm-up to D - r: with D forwards on every rank, neighbours would
  /// wait for each other in each round. A limit D < P is met by the counts up to P - r that finish
  /// first at B = 2 F, whatever the gap; ties go to the smaller counts.
  [[nodiscard]] [[gnu::cold]] constexpr std::vector<int> warm_up_counts(Shape shape) const {
    int const P = shape.ranks, gap = static_cast<int>(warmup);
    require_counts("1f1b", shape, 1);
    require(gap >= 1, "1f1b", Count::warm_up, gap, 1, "a gap is at least 1");
    require(in_flight >= 0, "1f1b", Count::in_flight, in_flight, 1,
            "a limit is at least 1, or 0 for none");
    std::vector<int> counts;
    for (int r = 0; r < P; ++r) {
      long long const wanted =
          std::min<long long>(1LL * gap * (P - r) - (gap - 1), shape.microbatches);
      int const count = static_cast<int>(wanted);  // a name: for a temporary, g++ would compile
      counts.push_back(count);                     // one more function that grows vectors
    }
    if (in_flight == 0 || counts[0] <= in_flight) return counts;
    if (in_flight < P) {
      auto const best = detail::ShallowWarmUp(shape, in_flight).best();
      return {best.begin(), best.end()};
    }
    int limit = in_flight;  // of the rank
    for (int& count : counts) count = std::max(1, std::min(count, limit--));
    return counts;
  }

  /// @param shape  any P and M, V = 1
  /// @throws Error bad_configuration
  [[nodiscard]] constexpr Table table(Shape shape) const { return rows(shape, 0, shape.ranks); }

  [[nodiscard]] [[gnu::cold]] constexpr Table rows(Shape shape, int first, int last) const {
    return detail::early_backward(shape, warm_up_counts(shape), first, last);
  }
};

template <> inline constexpr std::string_view catalog_name<OneFOneB> = "1f1b";

}  // namespace stagger::schedule
