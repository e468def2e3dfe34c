// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The order in which a rank visits its chunks in a depth-first schedule on a loop.
/// @source Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters", arXiv
///         2104.04473.

#include <algorithm>

#include <stagger/schedule/early_backward.hpp>
#include <stagger/schedule/legal.hpp>
#include <stagger/schedule/table.hpp>

namespace stagger::schedule::detail {

/// The nearest number that is legal; of two the smaller one.
template <class Legal> [[nodiscard]] constexpr int nearest_legal(int to, Legal const& legal) {
  int nearest = to;
  for (int by = 1; !legal(nearest); ++by) nearest = legal(to - by) ? to - by : to + by;
  return nearest;
}

/// The group size that a policy runs with: the one asked for, or PyTorch's, which divides M into
/// max(1, M / P) equal rounds.
/// @throws Error bad_configuration, naming the nearest legal value
[[nodiscard]] constexpr int legal_group(char const* policy, Shape shape, int group) {
  int const P = shape.ranks, M = shape.microbatches;
  if (group == 0 && shape.chunks == 1) return M;  // as for every group size
  if (group == 0) {
    auto const divides = [P](int m) { return m >= 1 && m % std::max(1, m / P) == 0; };
    require(divides(M), policy, Count::microbatches, M, nearest_legal(M, divides),
            "without a group size they are cut into M / P equal rounds");
    return M / std::max(1, M / P);
  }
  require(M >= P, policy, Count::microbatches, M, P,
          "a group holds at least one microbatch for each rank");
  auto const legal = [P, M](int n) { return n >= P && n <= M && (M % n == 0 || M % n >= P); };
  require(legal(group), policy, Count::group, group, nearest_legal(std::clamp(group, P, M), legal),
          "a group holds P to M microbatches, and what is left over is none or at least P");
  return group;
}

/// Depth first: a group of N microbatches passes a rank's first chunk, then its second, and so on;
/// then the next group. Backwards visit the chunks from the last to the first.
struct DepthFirst {
  Shape shape;
  int group;

  /// @throws Error as legal_group
  constexpr DepthFirst(char const* policy, Shape of, int asked)
      : shape(of), group(legal_group(policy, of, asked)) {}

  /// Forwards of a rank, and backwards.
  [[nodiscard]] constexpr int steps() const noexcept { return shape.chunks * shape.microbatches; }
  /// Forwards before the first backward: `apart` more than on the next rank.
  [[nodiscard]] constexpr long long ahead(int rank, int apart) const noexcept {
    return (shape.chunks - 1LL) * group + 1LL * apart * (shape.ranks - 1 - rank) + 1;
  }

  /// The `step`-th forward or backward of a rank, without its kind.
  [[nodiscard]] constexpr Action at(int rank, int step, bool forward) const noexcept {
    int const chunks = shape.chunks, full = shape.microbatches / group * group;
    int const in_full = full * chunks;  // steps in groups of full size
    int const size = step < in_full ? group : shape.microbatches - full;
    int const first = step < in_full ? step / (group * chunks) * group : full;
    int const within = step < in_full ? step % (group * chunks) : step - in_full;
    int const chunk = forward ? within / size : chunks - 1 - within / size;
    return {.kind = forward ? Kind::forward : Kind::backward,
            .stage = chunk * shape.ranks + rank,
            .microbatch = first + within % size};
  }
};

}  // namespace stagger::schedule::detail
