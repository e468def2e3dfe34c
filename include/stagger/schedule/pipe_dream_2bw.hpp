// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   PipeDream-2BW: 1F1B that never flushes, with two versions of the weights on each rank.
/// @source Narayanan et al., "Memory-Efficient Pipeline-Parallel DNN Training", arXiv 2006.09503,
///         section 3.1.

#include <vector>

#include <stagger/schedule/early_backward.hpp>
#include <stagger/schedule/legal.hpp>
#include <stagger/schedule/policy.hpp>

namespace stagger::schedule {

/// Gradients of M >= P microbatches are added before a new version is made, so that no microbatch
/// in flight needs any but the newest version and the one before. A table covers one batch of M;
/// without a flush the next one follows at once, and the bubble is paid once in a run.
struct PipeDream2BW {
  using policy_tag = ScheduleTag;
  static constexpr bool flushes = false;

  [[nodiscard]] constexpr int chunks() const noexcept { return 1; }

  /// Versions of its weights that a rank keeps.
  [[nodiscard]] constexpr int weight_versions(Shape, int) const noexcept { return 2; }

  /// @param shape  M >= P, V = 1
  /// @throws Error bad_configuration
  [[nodiscard]] constexpr Table table(Shape shape) const {
    require_counts("pipedream-2bw", shape, 1);
    require(shape.microbatches >= shape.ranks, "pipedream-2bw", Count::microbatches,
            shape.microbatches, shape.ranks, "two versions suffice only from P microbatches on");
    std::vector<int> count;
    for (int r = 0; r < shape.ranks; ++r) count.push_back(shape.ranks - r);
    return detail::early_backward(shape, count, 0, shape.ranks);
  }
};

template <> inline constexpr std::string_view catalog_name<PipeDream2BW> = "pipedream-2bw";

}  // namespace stagger::schedule
