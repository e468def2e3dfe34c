// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The warm-up: the number of forwards that each stage runs before its first backward.
/// @source Fan et al., "DAPPLE", PPoPP 2021, section 3.2 (P_A, P_B).

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include <stagger/core/error.hpp>

namespace stagger::plan {

/// Stage i runs gap (S - i) - (gap - 1) forwards, at most M. A gap of 1 is DAPPLE's P_A, of 2 its
/// P_B; 1 + ceil(alpha) hides transfers that take alpha / 2 times a forward and backward.
/// @throws Error  bad_configuration for counts below 1
[[nodiscard]] constexpr std::vector<int> warm_up_counts(int stages, int gap, int microbatches) {
  if (stages < 1 || gap < 1 || microbatches < 1)
    raise(Errc::bad_configuration, "a warm-up cannot be planned for ", stages, " stages, a gap of ",
          gap, " and ", microbatches, " microbatches; give each as 1 or more");
  std::vector<int> counts;
  for (long long left = stages; left > 0; --left)
    counts.push_back(static_cast<int>(std::min<long long>(gap * left - (gap - 1), microbatches)));
  return counts;
}

/// Warm-up counts within the memory of each stage.
///
/// With the same count on every stage, neighbours would wait for each other in lockstep. So three
/// variants are simulated: counts that fall by one from stage to stage, D - i; the largest count on
/// each stage; and from the better of these, changes of one count by one.
/// @param wanted    [stages] counts, never rising
/// @param depths    [stages] most microbatches in flight, each >= 1
/// @param seconds   of an iteration with given counts: double(std::vector<int> const&)
/// @throws Error    bad_configuration for a depth below 1
template <class Seconds>
[[nodiscard]] constexpr std::vector<int> fit_warm_up(std::vector<int> const& wanted,
                                                     std::span<int const> depths,
                                                     Seconds&& seconds) {
  std::size_t const S = wanted.size();
  bool fits = true;
  int most = depths.empty() ? 1 : depths[0];  // min over i of depth_i + i
  for (std::size_t i = 0; i < S; ++i) {
    if (depths[i] < 1)
      raise(Errc::bad_configuration, "stage ", i, " has room for ", depths[i],
            " microbatches in flight; it needs one");
    fits = fits && wanted[i] <= depths[i];
    most = std::min(most, depths[i] + static_cast<int>(i));
  }
  if (fits) return wanted;
  std::vector<int> best(S, 1), falling(S, 1);
  for (std::size_t i = 0; i < S; ++i) {
    best[i] = std::min({wanted[i], depths[i], i == 0 ? wanted[0] : best[i - 1]});
    falling[i] = std::max(1, std::min(wanted[i], most - static_cast<int>(i)));
  }
  double best_s = seconds(best);
  auto const consider = [&](std::vector<int> const& counts) {
    double const s = seconds(counts);
    if (!(s < best_s * (1 - 1e-12))) return false;
    best = counts;
    best_s = s;
    return true;
  };
  consider(falling);
  bool better = true;
  for (std::size_t round = 0; better && round < 2 * S; ++round) {
    better = false;
    for (std::size_t i = 0; i < S; ++i) {
      for (int const by : {-1, 1}) {
        std::vector<int> counts = best;
        counts[i] += by;
        bool const legal = counts[i] >= 1 && counts[i] <= std::min(wanted[i], depths[i]) &&
                           (i == 0 || counts[i] <= counts[i - 1]) &&
                           (i + 1 == S || counts[i] >= counts[i + 1]);
        if (legal && consider(counts)) better = true;
      }
    }
  }
  return best;
}

}  // namespace stagger::plan
