// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A virtual worker for each node.
/// @source J. H. Park et al., "HetPipe", USENIX ATC 2020, section 8.1, table 3.

#include <vector>

#include <stagger/placement/allocation.hpp>

namespace stagger::placement {

/// Worker h gets all devices of node h: the fastest links inside a worker, but unequal workers.
struct NodePartition {
  using policy_tag = AllocationTag;

  /// @throws Error  bad_configuration if there are not as many nodes as workers, all equally large
  [[nodiscard]] constexpr std::vector<std::vector<int>> allocate(cluster::Cluster const& cluster,
                                                                 int workers) const {
    if (cluster.nodes() != workers || workers < 1)
      detail::refuse_allocation("NodePartition", "as many workers as there are nodes",
                                "the number of nodes", cluster.nodes());
    std::vector<std::vector<int>> result;
    for (int n = 0; n < workers; ++n) {
      result.push_back(cluster.devices_of(n));
      if (result.back().size() != result.front().size())
        detail::refuse_allocation("NodePartition", "nodes of equally many devices",
                                  "the number in a later node", result.back().size());
    }
    return result;
  }
};

static_assert(AllocationPolicy<NodePartition>);

}  // namespace stagger::placement
