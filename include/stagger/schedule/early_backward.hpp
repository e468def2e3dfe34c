// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The order of 1F1B, which PipeDream and others share: some forwards, then one backward
///         and one forward, again and again.
/// @source Fan et al., "DAPPLE", PPoPP 2021, section 3.

#include <span>

#include <stagger/core/basic_algorithm.hpp>
#include <stagger/core/shape.hpp>
#include <stagger/schedule/table.hpp>

namespace stagger::schedule::detail {

/// Adds `ahead` forwards, then one backward and one forward, again and again, until there are
/// `count` of each.
/// @param forward, backward  add the n-th one, 0 <= n < count
template <class Forward, class Backward>
constexpr void alternate(int count, long long ahead, Forward const& forward,
                         Backward const& backward) {
  int const first = static_cast<int>(std::min<long long>(ahead, count));
  for (int n = 0; n < first; ++n) forward(n);
  for (int n = 0; n < count; ++n) {
    backward(n);
    if (n + first < count) forward(n + first);
  }
}

/// @param count  [ranks] forwards of each rank before its first backward, each >= 1, never more
///               than the rank before
/// @return the rows of ranks first <= r < last
[[nodiscard]] [[gnu::cold]] constexpr Table early_backward(Shape shape, std::span<int const> count,
                                                           int first, int last) {
  int const M = shape.microbatches;
  Table table = Table{.stages = shape.ranks, .microbatches = M}.like(2 * (last - first) * M);
  for (int rank = first; rank < last; ++rank) {
    table.begin_row();
    auto const add = [&](Kind kind) {
      return [&table, kind, rank](int m) {
        table.add({.kind = kind, .stage = rank, .microbatch = m});
      };
    };
    alternate(M, count.data()[rank], add(Kind::forward), add(Kind::backward));
  }
  return table;
}

}  // namespace stagger::schedule::detail
