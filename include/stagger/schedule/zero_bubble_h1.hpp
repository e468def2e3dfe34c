// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   ZB-H1: split backward, so that weight gradients fill what 1F1B leaves idle, at
///         1F1B's memory.
/// @source Qi et al., "Zero Bubble Pipeline Parallelism", arXiv 2401.10241; order of PyTorch's
///         ScheduleInterleavedZeroBubble for every number of chunks.

#include <algorithm>

#include <stagger/schedule/detail/looped.hpp>
#include <stagger/schedule/policy.hpp>

namespace stagger::schedule {

/// Stage s runs on rank s mod P. With V = 1 the bubble is (P - 1)(F + I - W) for W <= min(F, I) and
/// M >= P, and no rank holds more than min(M, P) microbatches, counted until their W.
struct ZeroBubbleH1 {
  using policy_tag = ScheduleTag;
  static constexpr bool flushes = true;

  int chunks_per_rank = 1;  ///< V >= 1
  int group = 0;  ///< microbatches that pass a chunk before the next one; 0: M / max(1, M / P)

  [[nodiscard]] constexpr int chunks() const noexcept { return chunks_per_rank; }

  /// Rank r begins with its weight gradients r steps after its first I, then keeps that distance.
  /// @param shape  P <= N <= M and M mod N = 0 or >= P; without a group size max(1, M / P) must
  ///               divide M
  /// @throws Error bad_configuration
  [[nodiscard]] constexpr Table table(Shape shape) const { return rows(shape, 0, shape.ranks); }

  [[nodiscard]] constexpr Table rows(Shape shape, int first, int last) const {
    require_counts("zb-h1", shape, chunks_per_rank);
    detail::DepthFirst const order("zb-h1", shape, group);
    int const steps = order.steps();
    Table table = Table{.stages = shape.stages(), .microbatches = shape.microbatches}.like(
        3 * steps * shape.ranks);
    for (int rank = first; rank < last; ++rank) {
      table.begin_row();
      auto const part = [&](int step, Kind kind) {
        Action a = order.at(rank, step, false);
        a.kind = kind;
        table.add(a);
      };
      auto const forward = [&](int step) { table.add(order.at(rank, step, true)); };
      detail::alternate(steps, order.ahead(rank, 1), forward, [&](int step) {
        part(step, Kind::backward_input);
        if (step >= rank) part(step - rank, Kind::backward_weight);
      });
      for (int step = std::max(0, steps - rank); step < steps; ++step)
        part(step, Kind::backward_weight);
    }
    return table;
  }
};

template <> inline constexpr std::string_view catalog_name<ZeroBubbleH1> = "zb-h1";

}  // namespace stagger::schedule
