// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Seq1F1B: each microbatch is cut along its sequence, and the slices flow through 1F1B.
/// @source Ao et al., "Seq1F1B", arXiv 2406.03488.

#include <cstdint>

#include <stagger/schedule/early_backward.hpp>
#include <stagger/schedule/legal.hpp>
#include <stagger/schedule/policy.hpp>

namespace stagger::schedule {

/// Slices of a microbatch run forward in rising and backward in falling order: a later slice
/// attends to the earlier ones. With S equal slices the bubble is (P - 1)(F + B) / S of a
/// microbatch; the peak is min(MS, P - r - 1 + S) slices.
struct Seq1F1B {
  using policy_tag = ScheduleTag;
  static constexpr bool flushes = true;

  int slices = 2;  ///< S >= 1, slices of a microbatch

  [[nodiscard]] constexpr int chunks() const noexcept { return 1; }

  /// @param shape  M >= P, V = 1
  /// @throws Error bad_configuration
  [[nodiscard]] constexpr Table table(Shape shape) const { return rows(shape, 0, shape.ranks); }

  [[nodiscard]] constexpr Table rows(Shape shape, int first, int last) const {
    require_counts("seq-1f1b", shape, 1);
    int const P = shape.ranks, M = shape.microbatches, S = slices;
    require(M >= P, "seq-1f1b", Count::microbatches, M, P,
            "the steady state needs one for each rank");
    require_slices("seq-1f1b", shape, S);
    Table table = Table{.stages = P, .microbatches = M, .slices = S}.like(2 * P * M * S);
    for (int rank = first; rank < last; ++rank) {
      table.begin_row();
      auto const add = [&](Kind kind, int n, int slice) {
        table.add({.kind = kind,
                   .stage = rank,
                   .microbatch = n / S,
                   .slice = static_cast<std::int16_t>(slice)});
      };
      detail::alternate(
          M * S, P - rank - 1 + S, [&](int n) { add(Kind::forward, n, n % S); },
          [&](int n) { add(Kind::backward, n, S - 1 - n % S); });
    }
    return table;
  }
};

template <> inline constexpr std::string_view catalog_name<Seq1F1B> = "seq-1f1b";

}  // namespace stagger::schedule
