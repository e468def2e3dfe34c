// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   DualPipe: microbatches enter at both ends, and a forward of one direction overlaps a
///         backward of the other.
/// @source DeepSeek-AI, "DeepSeek-V3 Technical Report", arXiv 2412.19437, section 3.2.1; DeepSeek's
///         step order.

#include <algorithm>

#include <stagger/schedule/detail/dual_steps.hpp>
#include <stagger/schedule/legal.hpp>
#include <stagger/schedule/policy.hpp>

namespace stagger::schedule {

/// Two replicas of the model: microbatches 0 to M/2 - 1 run stage s on rank s, the others on rank P
/// - 1 - s. At F = I = W, with a pair F&B at F + I + W: bubble (P/2 - 1)(F&B + B - 3W), peak P + 1
/// on every rank.
struct DualPipe {
  using policy_tag = ScheduleTag;
  static constexpr bool flushes = true;

  /// P stages; each rank runs one in either direction.
  [[nodiscard]] constexpr int chunks() const noexcept { return 1; }

  /// @param shape  P and M even, M >= 2P, V = 1
  /// @throws Error bad_configuration
  [[nodiscard]] constexpr Table table(Shape shape) const { return rows(shape, 0, shape.ranks); }

  [[nodiscard]] constexpr Table rows(Shape shape, int first, int last) const {
    require_counts("dualpipe", shape, 1);
    int const P = shape.ranks, M = shape.microbatches;
    require_even("dualpipe", Count::ranks, P);
    require(M >= 2 * P, "dualpipe", Count::microbatches, M, 2 * P,
            "the steady state begins at 2 P");
    require_even("dualpipe", Count::microbatches, M);
    Table table{.stages = P, .microbatches = M};
    for (int rank = first; rank < last; ++rank) {
      table.begin_row();
      int const depth = std::min(rank, P - 1 - rank);
      bool const upper = rank < P / 2;
      detail::dual_steps(table, P / 2 - depth - 1, depth, {depth, P - 1 - depth},
                         {upper ? 0 : M / 2, upper ? M / 2 : 0}, M / 2 - P + depth + 1);
    }
    return table;
  }
};

template <> inline constexpr std::string_view catalog_name<DualPipe> = "dualpipe";

}  // namespace stagger::schedule
