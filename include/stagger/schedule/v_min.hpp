// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   V-Min: a third of 1F1B's memory, on a V.
/// @source Qi et al., "Pipeline Parallelism with Controllable Memory", arXiv 2405.15362, section 4.

#include <stagger/schedule/detail/repetition.hpp>
#include <stagger/schedule/legal.hpp>
#include <stagger/schedule/policy.hpp>

namespace stagger::schedule {

/// Rank r runs stages r and 2P - 1 - r. A microbatch never rests on its way, so it lives as briefly
/// as a V allows: at most 2(floor((P + 1) / 3) + 1) chunks are in flight, counted until their W.
struct VMin {
  using policy_tag = ScheduleTag;
  static constexpr bool flushes = true;

  [[nodiscard]] constexpr int chunks() const noexcept { return 2; }

  /// @param shape  any P and M, V = 2
  /// @throws Error bad_configuration
  [[nodiscard]] constexpr Table table(Shape shape) const {
    require_counts("v-min", shape, 2);
    detail::Pattern const pattern(shape.ranks, false);
    int const most_chunks = 2 * ((shape.ranks + 1) / 3 + 1);
    return detail::Repetition(shape, pattern, false, most_chunks).table();
  }
};

template <> inline constexpr std::string_view catalog_name<VMin> = "v-min";

}  // namespace stagger::schedule
