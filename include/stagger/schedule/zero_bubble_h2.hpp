// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   ZB-H2: no idle time between a rank's first and last action, at about twice 1F1B's
///         memory.
/// @source Qi et al., "Zero Bubble Pipeline Parallelism", arXiv 2401.10241, section 2.2.

#include <algorithm>

#include <stagger/schedule/early_backward.hpp>
#include <stagger/schedule/legal.hpp>
#include <stagger/schedule/policy.hpp>

namespace stagger::schedule {

/// Rank r runs 2(P - r) - 1 forwards before its first I, which fills the time until a gradient can
/// come back, and keeps 2r weight gradients for the end, which fills the time in which the last
/// gradients travel. For M >= 2P - 1 and F = I = W no rank idles within its span: span bubble 0,
/// bubble P - 1 forwards.
struct ZeroBubbleH2 {
  using policy_tag = ScheduleTag;
  static constexpr bool flushes = true;

  [[nodiscard]] constexpr int chunks() const noexcept { return 1; }

  /// @param shape  any P and M, V = 1
  /// @throws Error bad_configuration
  [[nodiscard]] constexpr Table table(Shape shape) const { return rows(shape, 0, shape.ranks); }

  [[nodiscard]] constexpr Table rows(Shape shape, int first, int last) const {
    require_counts("zb-h2", shape, 1);
    int const P = shape.ranks, M = shape.microbatches;
    Table table = Table{.stages = P, .microbatches = M}.like(3 * P * M);
    for (int rank = first; rank < last; ++rank) {
      table.begin_row();
      auto const add = [&](Kind kind, int m) {
        table.add({.kind = kind, .stage = rank, .microbatch = m});
      };
      int const behind = static_cast<int>(std::min<long long>(2LL * rank, M));
      auto const forward = [&](int m) { add(Kind::forward, m); };
      detail::alternate(M, 2LL * (P - rank) - 1, forward, [&](int m) {
        add(Kind::backward_input, m);
        if (m >= behind) add(Kind::backward_weight, m - behind);
      });
      for (int m = M - behind; m < M; ++m) add(Kind::backward_weight, m);
    }
    return table;
  }
};

template <> inline constexpr std::string_view catalog_name<ZeroBubbleH2> = "zb-h2";

}  // namespace stagger::schedule
