// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The published rule of MG-WFBP.
/// @source S. Shi, X. Chu, B. Li, "MG-WFBP: Efficient Data Communication for Distributed
///         Synchronous SGD", INFOCOM 2019, algorithm 1. Two corrections: the ready time of layer 1,
///         which the printed loop leaves unset, is set, and the running time is O(layers).

#include <algorithm>
#include <cstddef>
#include <vector>

#include <stagger/collective/grouping/policy.hpp>

namespace stagger::collective::grouping {

/// From the last layer down, a layer joins the next lower one if that one is ready less than one
/// start-up time after this layer's message could begin.
///
/// It is never worse than Layerwise or Single. It is not optimal, although the paper's theorem 1
/// says so: it minimises only the end of the next layer. If every layer's backward takes less than
/// the start-up, it merges everything. Use Optimal; this policy is here for comparison.
struct Greedy {
  using policy_tag = GroupingTag;

  [[nodiscard]] constexpr std::vector<LayerGroup> groups(Backward const& backward,
                                                         CostLine cost) const {
    auto const layers = detail::learnable(backward, cost);
    std::vector<std::size_t> ends;
    if (layers.size() == 0) return detail::spread(layers, ends);
    double start = layers.ready_s[0];  // start of the message that is being built
    std::uint64_t bytes = layers.bytes[0];
    for (std::size_t i = 0; i + 1 < layers.size(); ++i) {
      double const next = layers.ready_s[i + 1];
      if (next - start < cost.startup_s) {
        start = std::max(start, next);
        bytes += layers.bytes[i + 1];
      } else {
        ends.push_back(i);
        start = std::max(start + cost.seconds(bytes), next);
        bytes = layers.bytes[i + 1];
      }
    }
    ends.push_back(layers.size() - 1);
    return detail::spread(layers, ends);
  }
};

}  // namespace stagger::collective::grouping
