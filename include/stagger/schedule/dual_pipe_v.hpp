// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   DualPipeV: DualPipe cut in half, one replica on a V.
/// @source Qi et al., "DualPipe could be better without the Dual", 2025; DeepSeek's step order.

#include <stagger/schedule/detail/dual_steps.hpp>
#include <stagger/schedule/legal.hpp>
#include <stagger/schedule/policy.hpp>

namespace stagger::schedule {

/// Rank r runs stages r and 2P - 1 - r. At F = I = W, with a pair F&B at F + I + W: bubble (P -
/// 1)(F&B + B - 3W), peak 2P + 1 chunks.
struct DualPipeV {
  using policy_tag = ScheduleTag;
  static constexpr bool flushes = true;

  [[nodiscard]] constexpr int chunks() const noexcept { return 2; }

  /// @param shape  M >= 2P, V = 2
  /// @throws Error bad_configuration
  [[nodiscard]] constexpr Table table(Shape shape) const { return rows(shape, 0, shape.ranks); }

  [[nodiscard]] constexpr Table rows(Shape shape, int first, int last) const {
    require_counts("dualpipe-v", shape, 2);
    int const P = shape.ranks, M = shape.microbatches;
    require(M >= 2 * P, "dualpipe-v", Count::microbatches, M, 2 * P,
            "the steady state begins at 2 P");
    Table table{.stages = 2 * P, .microbatches = M};
    for (int rank = first; rank < last; ++rank) {
      table.begin_row();
      detail::dual_steps(table, P - rank - 1, rank, {rank, 2 * P - 1 - rank}, {0, 0},
                         M - 2 * P + rank + 1);
    }
    return table;
  }
};

template <> inline constexpr std::string_view catalog_name<DualPipeV> = "dualpipe-v";

}  // namespace stagger::schedule
