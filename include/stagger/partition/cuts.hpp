// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Cuts given by the user or by a planner.

#include <vector>

#include <stagger/core/error.hpp>
#include <stagger/partition/policy.hpp>

namespace stagger::partition {

/// Cuts in front of the layers named.
struct Cuts {
  using policy_tag = PartitionTag;
  std::vector<int> first_layers;  ///< [stages - 1] first layer of each stage after the first

  /// @throws Error  bad_configuration if the cuts do not rise strictly within 1..layers-1
  [[nodiscard]] constexpr std::vector<int> cuts(int layers) const {
    if (layers == 1 && !first_layers.empty())
      raise(Errc::bad_configuration, "a model of 1 layer cannot be cut; give no cuts");
    int before = 0;
    for (int const cut : first_layers) {
      if (cut <= before || cut >= layers)
        raise(Errc::bad_configuration, "cut ", cut, " does not fit: with ",
              counted(layers, "layer"), ", cuts are numbers from 1 to ", layers - 1,
              ", each greater than the one before");
      before = cut;
    }
    return first_layers;
  }
};

static_assert(PartitionPolicy<Cuts>);

}  // namespace stagger::partition
