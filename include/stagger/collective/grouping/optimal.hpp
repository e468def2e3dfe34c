// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The grouping with which the iteration ends first.

#include <cstddef>
#include <cstdint>
#include <vector>

#include <stagger/collective/grouping/policy.hpp>
#include <stagger/core/algorithm.hpp>

namespace stagger::collective::grouping {

/// Computed exactly, by dynamic programming over the layer that ends each message. Of groupings
/// that are equally good, it takes one with few messages.
///
/// A message that ends with layer j starts when j is ready and the link is free. The earlier the
/// messages before it end, the earlier it ends, so an optimal grouping consists of optimal
/// groupings of its prefixes: end(j) = min over k of max(end(k), ready(j)) + cost(bytes after k up
/// to j).
/// @complexity  O(layers²) time, O(layers) memory
struct Optimal {
  using policy_tag = GroupingTag;

  [[nodiscard]] constexpr std::vector<LayerGroup> groups(Backward const& backward,
                                                         CostLine cost) const {
    auto const layers = detail::learnable(backward, cost);
    std::size_t const n = layers.size();
    std::vector<double> end(n + 1, 0.0);        // end[j]: of the first j layers
    std::vector<std::size_t> before(n + 1, 0);  // layers sent before the message that ends there
    std::vector<std::size_t> messages(n + 1, 0);
    for (std::size_t j = 1; j <= n; ++j) {
      double const ready = layers.ready_s[j - 1];
      std::uint64_t bytes = 0;
      for (std::size_t k = j; k-- > 0;) {
        bytes += layers.bytes[k];
        double const candidate = std::max(end[k], ready) + cost.seconds(bytes);
        bool const better = k == j - 1 || candidate < end[j] ||
                            (candidate == end[j] && messages[k] + 1 < messages[j]);
        if (!better) continue;
        end[j] = candidate;
        before[j] = k;
        messages[j] = messages[k] + 1;
      }
    }
    std::vector<std::size_t> ends;
    for (std::size_t j = n; j > 0; j = before[j]) ends.push_back(j - 1);
    std::reverse(ends.begin(), ends.end());
    return detail::spread(layers, ends);
  }
};

}  // namespace stagger::collective::grouping
