// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   ZB-V: no idle time within a rank's span at 1F1B's memory, on a V.
/// @source Qi et al., "Pipeline Parallelism with Controllable Memory", arXiv 2405.15362. The drain
///         is that of PyTorch's ScheduleZBVZeroBubble, with gradients of the two chunks alternating
///         and all weight gradients that are left at the end: it needs no costs, by which the
///         authors' generator places each weight gradient.

#include <algorithm>
#include <array>
#include <cstddef>

#include <stagger/schedule/legal.hpp>
#include <stagger/schedule/policy.hpp>

namespace stagger::schedule {

/// Rank r runs stages r and 2P - 1 - r. For M >= 2P - 1 and F = I = W: span bubble 0, bubble P - 1
/// forwards of a chunk, peak 2P chunks on every rank. Fewer microbatches run in the order of more
/// with the others left out: more than P in the order of 2P - 1, as PyTorch has it, and M <= P in
/// that of P + (M - 1) / 2, which ends up to a tenth earlier.
struct ZeroBubbleV {
  using policy_tag = ScheduleTag;
  static constexpr bool flushes = true;

  [[nodiscard]] constexpr int chunks() const noexcept { return 2; }

  /// @param shape  any P and M, V = 2
  /// @throws Error bad_configuration
  [[nodiscard]] constexpr Table table(Shape shape) const { return rows(shape, 0, shape.ranks); }

  [[nodiscard]] constexpr Table rows(Shape shape, int first, int last) const {
    require_counts("zb-v", shape, 2);
    int const P = shape.ranks;
    int const M = shape.microbatches <= P ? P + (shape.microbatches - 1) / 2
                                          : std::max(shape.microbatches, 2 * P - 1);
    Table table =
        Table{.stages = 2 * P, .microbatches = shape.microbatches}.like(6 * P * shape.microbatches);
    for (int rank = first; rank < last; ++rank) {
      table.begin_row();
      std::array<std::array<int, 3>, 2> next{};  // microbatch, by chunk and F, I, W
      auto const add = [&](Kind kind, std::size_t chunk) {
        std::size_t const column = kind == Kind::forward ? 0 : kind == Kind::backward_input ? 1 : 2;
        int const m = next[chunk][column]++;
        if (m < shape.microbatches) {
          table.add({.kind = kind, .stage = chunk == 0 ? rank : 2 * P - 1 - rank, .microbatch = m});
        }
      };
      auto const backward = [&](std::size_t chunk) {
        add(Kind::backward_input, chunk);
        add(Kind::backward_weight, chunk);
      };
      for (int i = 0; i < 2 * (P - rank) - 1; ++i) add(Kind::forward, 0);
      for (int i = 0; i < rank; ++i) {
        add(Kind::forward, 1);
        add(Kind::forward, 0);
      }
      for (int i = 0; i < P - rank; ++i) {
        add(Kind::forward, 1);
        backward(1);
      }
      while (next[1][0] < next[0][0] || next[0][0] < M) {
        if (next[0][0] < M) add(Kind::forward, 0);
        backward(0);
        add(Kind::forward, 1);
        backward(1);
      }
      for (int i = 0; i < rank; ++i) {
        add(Kind::backward_input, 0);
        add(Kind::backward_input, 1);
      }
      for (int i = 0; i < P - rank; ++i) backward(0);
      while (next[1][2] < next[1][1]) add(Kind::backward_weight, 1);
      while (next[0][2] < next[0][1]) add(Kind::backward_weight, 0);
    }
    return table;
  }
};

template <> inline constexpr std::string_view catalog_name<ZeroBubbleV> = "zb-v";

}  // namespace stagger::schedule
