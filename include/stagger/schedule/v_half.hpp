// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   V-Half: half of 1F1B's memory and about half of its bubble, on a V.
/// @source Qi et al., "Pipeline Parallelism with Controllable Memory", arXiv 2405.15362, section 4.

#include <utility>

#include <stagger/core/grid.hpp>
#include <stagger/schedule/detail/repetition.hpp>
#include <stagger/schedule/legal.hpp>
#include <stagger/schedule/policy.hpp>

namespace stagger::schedule {

/// Rank r runs stages r and 2P - 1 - r. A microbatch rests one unit on each rank on its way
/// down, forward and backward, and none on its way up: at most 2 ceil((P + 1) / 2) chunks are
/// in flight, counted until their W.
struct VHalf {
  using policy_tag = ScheduleTag;
  static constexpr bool flushes = true;

  [[nodiscard]] constexpr int chunks() const noexcept { return 2; }

  /// @param shape  any P and M, V = 2
  /// @throws Error bad_configuration
  [[nodiscard]] constexpr Table table(Shape shape) const {
    require_counts("v-half", shape, 2);
    int const P = shape.ranks;
    int const rest = P % 2 == 0 ? 3 : 0;  // else two passes of a rank would fall on the same unit
    Grid<int> start(P, 4, 0);
    for (int r = 0; r < P; ++r) {
      start(r, 0) = 2 * r;
      start(r, 1) = 3 * P - 2 - r;
      start(r, 2) = 3 * P - 1 + rest + 2 * r;
      start(r, 3) = 6 * P - 2 + rest - r;
    }
    detail::Pattern const pattern(std::move(start));
    int const most_chunks = 2 * ((P + 2) / 2);
    return detail::Repetition(shape, pattern, false, most_chunks).table();
  }
};

template <> inline constexpr std::string_view catalog_name<VHalf> = "v-half";

}  // namespace stagger::schedule
