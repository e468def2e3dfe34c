// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Looped breadth first: all microbatches through a chunk before the next chunk begins.
/// @source Lamy-Poirier, "Breadth-First Pipeline Parallelism", arXiv 2211.05953; order of PyTorch's
///         ScheduleLoopedBFS.

#include <stagger/schedule/legal.hpp>
#include <stagger/schedule/policy.hpp>

namespace stagger::schedule {

/// Stage s runs on rank s mod P. Backwards take the microbatches from the last to the first, and
/// that is the order in which gradients are added. Bubble (P - 1)(F + B) of one chunk for M >= P;
/// every rank holds all VM chunks.
struct LoopedBfs {
  using policy_tag = ScheduleTag;
  static constexpr bool flushes = true;

  int chunks_per_rank = 2;  ///< V >= 1

  [[nodiscard]] constexpr int chunks() const noexcept { return chunks_per_rank; }

  /// @param shape  any P, M and V
  /// @throws Error bad_configuration
  [[nodiscard]] constexpr Table table(Shape shape) const { return rows(shape, 0, shape.ranks); }

  [[nodiscard]] constexpr Table rows(Shape shape, int first, int last) const {
    require_counts("looped-bfs", shape, chunks_per_rank);
    int const M = shape.microbatches;
    Table table = Table{.stages = shape.stages(), .microbatches = M}.like(2 * shape.stages() * M);
    for (int rank = first; rank < last; ++rank) {
      table.begin_row();
      for (int stage = rank; stage < shape.stages(); stage += shape.ranks) {
        for (int m = 0; m < M; ++m)
          table.add({.kind = Kind::forward, .stage = stage, .microbatch = m});
      }
      for (int stage = shape.stages() - shape.ranks + rank; stage >= 0; stage -= shape.ranks) {
        for (int m = M; m-- > 0;)
          table.add({.kind = Kind::backward, .stage = stage, .microbatch = m});
      }
    }
    return table;
  }
};

template <> inline constexpr std::string_view catalog_name<LoopedBfs> = "looped-bfs";

}  // namespace stagger::schedule
