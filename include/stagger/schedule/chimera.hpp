// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Chimera: two pipelines in opposite directions over the same ranks.
/// @source Li and Hoefler, "Chimera", arXiv 2107.06925, section 3. More microbatches than ranks
///         follow each other as in the paper's direct concatenation: at most P/2 of a direction are
///         in flight.

#include <tuple>

#include <stagger/schedule/detail/greedy.hpp>
#include <stagger/schedule/legal.hpp>
#include <stagger/schedule/policy.hpp>

namespace stagger::schedule {

/// Two replicas of the model: microbatches 0 to M/2 - 1 run stage s on rank s, the others on rank P
/// - 1 - s. For M = P the bubble is a fraction (P - 2) / (2M + P - 2) of the makespan at B = F and
/// (P - 2) / (3M/2 + P - 2) at B = 2F.
struct Chimera {
  using policy_tag = ScheduleTag;
  static constexpr bool flushes = true;

  /// P stages; each rank runs one in either direction.
  [[nodiscard]] constexpr int chunks() const noexcept { return 1; }

  /// @param shape  P and M even, V = 1
  /// @throws Error bad_configuration
  [[nodiscard]] constexpr Table table(Shape shape) const {
    require_counts("chimera", shape, 1);
    require_bidirectional("chimera", shape);
    // Backwards come before forwards. Of backwards the lowest stage comes first, of forwards the
    // highest, since these are nearest to the end of their pass.
    auto const key = [](detail::Candidate const& c) {
      bool const forward = c.kind == Kind::forward;
      return std::tuple(forward, forward ? -c.part->stage : c.part->stage,
                        c.microbatch - c.part->first, c.part->first);
    };
    return detail::greedy(detail::stage_parts(Mapping::bidirectional, shape, shape.ranks / 2),
                          shape, Costs::uniform(1, 0.5, 0.5), detail::Backwards::whole, key);
  }
};

template <> inline constexpr std::string_view catalog_name<Chimera> = "chimera";

}  // namespace stagger::schedule
