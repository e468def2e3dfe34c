// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   V-1F1B: at most three quarters of 1F1B's memory without a split backward, on a V.
/// @source Qi et al., "Pipeline Parallelism with Controllable Memory", arXiv 2405.15362, section 4.

#include <stagger/schedule/detail/repetition.hpp>
#include <stagger/schedule/legal.hpp>
#include <stagger/schedule/policy.hpp>

namespace stagger::schedule {

/// Rank r runs stages r and 2P - 1 - r. The pattern leaves room for backwards of two units; at most
/// 2 ceil(3P / 4) chunks are in flight, towards two thirds of 1F1B's for many ranks. The bubble is
/// never more than 1F1B's.
struct V1F1B {
  using policy_tag = ScheduleTag;
  static constexpr bool flushes = true;

  [[nodiscard]] constexpr int chunks() const noexcept { return 2; }

  /// @param shape  any P and M, V = 2
  /// @throws Error bad_configuration
  [[nodiscard]] constexpr Table table(Shape shape) const {
    require_counts("v-1f1b", shape, 2);
    detail::Pattern const pattern(shape.ranks, true);
    int const most_chunks = 2 * ((3 * shape.ranks + 3) / 4);
    return detail::Repetition(shape, pattern, true, most_chunks).table();
  }
};

template <> inline constexpr std::string_view catalog_name<V1F1B> = "v-1f1b";

}  // namespace stagger::schedule
