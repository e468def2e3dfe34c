// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Virtual workers that are all alike.
/// @source J. H. Park et al., "HetPipe", USENIX ATC 2020, section 8.1, table 3.

#include <cstddef>
#include <vector>

#include <stagger/placement/allocation.hpp>

namespace stagger::placement {

/// Worker i gets the i-th device of every node: one partition suits all workers, but every boundary
/// crosses nodes.
struct EqualDistribution {
  using policy_tag = AllocationTag;

  /// @throws Error  bad_configuration if some node does not have as many devices as workers
  [[nodiscard]] constexpr std::vector<std::vector<int>> allocate(cluster::Cluster const& cluster,
                                                                 int workers) const {
    std::vector<std::vector<int>> result;
    for (int w = 0; w < workers; ++w) result.emplace_back();
    for (int n = 0; n < cluster.nodes(); ++n) {
      auto const devices = cluster.devices_of(n);
      if (devices.size() != result.size() || workers < 1)
        detail::refuse_allocation("EqualDistribution",
                                  "in every node as many devices as there are workers",
                                  "the number in one node", devices.size());
      for (std::size_t w = 0; w < result.size(); ++w) result[w].push_back(devices[w]);
    }
    return result;
  }
};

static_assert(AllocationPolicy<EqualDistribution>);

}  // namespace stagger::placement
