// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Stages with equal numbers of layers.

#include <vector>

#include <stagger/core/error.hpp>
#include <stagger/partition/policy.hpp>

namespace stagger::partition {

/// Stages with equal numbers of layers. If these do not divide evenly, earlier stages get one layer
/// more.
struct Even {
  using policy_tag = PartitionTag;
  int stages = 1;  ///< >= 1

  /// @throws Error  bad_configuration if there are no stages, or more than layers
  [[nodiscard]] constexpr std::vector<int> cuts(int layers) const {
    if (stages < 1 || stages > layers)
      raise(Errc::bad_configuration, counted(stages, "stage"), " cannot be made of ",
            counted(layers, "layer"), "; use 1 to ", layers);
    std::vector<int> cuts;
    int const each = layers / stages;
    int const longer = layers % stages;
    for (int s = 1; s < stages; ++s) cuts.push_back(s * each + (s < longer ? s : longer));
    return cuts;
  }
};

static_assert(PartitionPolicy<Even>);

}  // namespace stagger::partition
