// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   V-Half: half of 1F1B's memory and about half of its bubble, on a V.
/// @source Qi et al., "Pipeline Parallelism with Controllable Memory", arXiv 2405.15362, section 4.

#include <stagger/schedule/building_block.hpp>
#include <stagger/schedule/legal.hpp>
#include <stagger/schedule/policy.hpp>

namespace stagger::schedule {

/// Rank r runs stages r and 2P - 1 - r. A microbatch rests one unit before each forward on its way
/// down the ranks, and before each of its first gradients: at most 2 ceil((P + 1) / 2) chunks are
/// in flight, counted until their W.
struct VHalf {
  using policy_tag = ScheduleTag;
  static constexpr bool flushes = true;
  static constexpr bool proven = true;

  /// Two stages on each rank.
  [[nodiscard]] constexpr int chunks() const noexcept { return 2; }

  /// Most chunks in flight on a rank.
  [[nodiscard]] static constexpr int peak(int ranks) noexcept { return 2 * ((ranks + 2) / 2); }

  /// @param shape  any P and M, V = 2
  /// @throws Error bad_configuration
  [[nodiscard]] constexpr Table table(Shape shape) const {
    require_counts("v-half", shape, 2);
    detail::BuildingBlock const block(shape.ranks, {1, 0, 1, 0}, false);
    return detail::Repetition(shape, block, false, peak(shape.ranks), true).table();
  }
};

static_assert(SchedulePolicy<VHalf>);

}  // namespace stagger::schedule
