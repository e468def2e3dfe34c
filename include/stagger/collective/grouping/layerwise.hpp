// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   One message per layer.
/// @source H. Zhang et al., "Poseidon", ATC 2017 (wait-free backpropagation).

#include <cstddef>
#include <vector>

#include <stagger/collective/grouping/policy.hpp>

namespace stagger::collective::grouping {

/// Wait-free backpropagation: each gradient is sent as soon as it is there. It pays the start-up
/// once per layer, so it is best if the start-up is small compared with a layer's backward time.
struct Layerwise {
  using policy_tag = GroupingTag;
  static constexpr bool uses_times = false;

  [[nodiscard]] constexpr std::vector<LayerGroup> groups(Backward const& backward,
                                                         CostLine cost) const {
    auto const layers = detail::learnable(backward, cost);
    std::vector<std::size_t> ends;
    for (std::size_t i = 0; i < layers.size(); ++i) ends.push_back(i);
    return detail::spread(layers, ends);
  }
};

}  // namespace stagger::collective::grouping
