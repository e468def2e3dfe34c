// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The order that 1F1B shares with PipeDream: some forwards, then one backward and one
///         forward, again and again.
/// @source Fan et al., "DAPPLE", PPoPP 2021, section 3.

#include <span>

#include <stagger/core/algorithm.hpp>
#include <stagger/core/shape.hpp>
#include <stagger/schedule/table.hpp>

namespace stagger::schedule::detail {

/// @param count  [ranks] forwards of each rank before its first backward, each >= 1, never more
/// than the rank before
/// @return the rows of ranks first <= r < last
[[nodiscard]] [[gnu::cold]] constexpr Table early_backward(Shape shape, std::span<int const> count,
                                                           int first, int last) {
  int const M = shape.microbatches;
  Table table = Table{.stages = shape.ranks, .microbatches = M}.like(2 * (last - first) * M);
  for (int rank = first; rank < last; ++rank) {
    table.begin_row();
    int const ahead = std::min(count.data()[rank], M);
    for (int m = 0; m < ahead; ++m)
      table.add({.kind = Kind::forward, .stage = rank, .microbatch = m});
    for (int m = 0; m < M; ++m) {
      table.add({.kind = Kind::backward, .stage = rank, .microbatch = m});
      if (m + ahead < M) table.add({.kind = Kind::forward, .stage = rank, .microbatch = m + ahead});
    }
  }
  return table;
}

}  // namespace stagger::schedule::detail
