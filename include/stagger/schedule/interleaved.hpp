// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Interleaved 1F1B: several chunks on each rank, depth first.
/// @source Narayanan et al., arXiv 2104.04473, section 2.2; the compute order is Megatron-LM's
///         for every group size, and that of PyTorch's ScheduleInterleaved1F1B without one.

#include <stagger/schedule/detail/looped.hpp>
#include <stagger/schedule/policy.hpp>

namespace stagger::schedule {

/// Stage s runs on rank s mod P. For M >= P the bubble is (P - 1)(F + B) of one chunk, so a
/// fraction (P - 1) / (VM + P - 1); the peak is min(VM, (V - 1)N + 2(P - 1 - r) + 1) chunks.
struct Interleaved {
  using policy_tag = ScheduleTag;
  static constexpr bool flushes = true;

  int chunks_per_rank = 2;  ///< V >= 1; V = 1 keeps this schedule's warm-up of 2(P - 1 - r)
  int group = 0;  ///< N, microbatches that pass a chunk before the next one; 0: M / max(1, M / P)

  [[nodiscard]] constexpr int chunks() const noexcept { return chunks_per_rank; }

  /// @param shape  P <= N <= M and M mod N = 0 or >= P; without a group size max(1, M / P) must
  ///               divide M
  /// @throws Error bad_configuration
  [[nodiscard]] constexpr Table table(Shape shape) const { return rows(shape, 0, shape.ranks); }

  [[nodiscard]] constexpr Table rows(Shape shape, int first, int last) const {
    require_counts("interleaved", shape, chunks_per_rank);
    detail::DepthFirst const order("interleaved", shape, group);
    Table table = Table{.stages = shape.stages(), .microbatches = shape.microbatches}.like(
        2 * order.steps() * shape.ranks);
    for (int rank = first; rank < last; ++rank) {
      table.begin_row();
      detail::alternate(
          order.steps(), order.ahead(rank, 2),
          [&](int step) { table.add(order.at(rank, step, true)); },
          [&](int step) { table.add(order.at(rank, step, false)); });
    }
    return table;
  }
};

template <> inline constexpr std::string_view catalog_name<Interleaved> = "interleaved";

}  // namespace stagger::schedule
