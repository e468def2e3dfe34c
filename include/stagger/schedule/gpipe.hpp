// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   GPipe: all forwards, then all backwards.
/// @source Huang et al., "GPipe", arXiv 1811.06965.

#include <stagger/schedule/legal.hpp>
#include <stagger/schedule/policy.hpp>

namespace stagger::schedule {

/// Fill and drain. Bubble (P - 1)(F + B); every rank holds all M microbatches at its peak.
///
/// Backwards run in rising order, so gradients are added in microbatch order.
struct GPipe {
  using policy_tag = ScheduleTag;
  static constexpr bool flushes = true;

  [[nodiscard]] constexpr int chunks() const noexcept { return 1; }

  /// @param shape  any P and M, V = 1
  /// @throws Error bad_configuration
  [[nodiscard]] constexpr Table table(Shape shape) const { return rows(shape, 0, shape.ranks); }

  [[nodiscard]] constexpr Table rows(Shape shape, int first, int last) const {
    require_counts("gpipe", shape, 1);
    int const P = shape.ranks, M = shape.microbatches;
    Table table = Table{.stages = P, .microbatches = M}.like(2 * P * M);
    for (int rank = first; rank < last; ++rank) {
      table.begin_row();
      for (Kind const kind : {Kind::forward, Kind::backward}) {
        for (int m = 0; m < M; ++m) table.add({.kind = kind, .stage = rank, .microbatch = m});
      }
    }
    return table;
  }
};

template <> inline constexpr std::string_view catalog_name<GPipe> = "gpipe";

}  // namespace stagger::schedule
