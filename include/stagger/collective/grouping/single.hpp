// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   One message for all layers that are given: in a pipeline, one for each stage.
/// @source Y. You, A. Buluc, J. Demmel, "Scaling deep learning on GPU and Knights Landing
///         clusters", SC 2017 (SyncEASGD, single layer).

#include <vector>

#include <stagger/collective/grouping/policy.hpp>

namespace stagger::collective::grouping {

/// All gradients are sent at once, after the backward pass, which pays the start-up once and
/// overlaps with nothing.
struct Single {
  using policy_tag = GroupingTag;
  static constexpr bool uses_times = false;

  [[nodiscard]] constexpr std::vector<LayerGroup> groups(Backward const& backward,
                                                         CostLine cost) const {
    collective::detail::require_backward(backward, cost);
    if (backward.layers() == 0) return {};
    return {LayerGroup{backward.layers(), 1}};
  }
};

}  // namespace stagger::collective::grouping
