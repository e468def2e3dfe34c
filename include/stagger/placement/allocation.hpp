// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Allocations: how the devices of a cluster are divided among virtual workers.
/// @source J. H. Park et al., "HetPipe", USENIX ATC 2020, section 8.1, table 3.

#include <concepts>
#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <stagger/cluster/cluster.hpp>
#include <stagger/core/error.hpp>

namespace stagger {

/// Marks an allocation, which gives each virtual worker its devices; a virtual worker runs one
/// pipeline. `allocate(cluster, workers)` returns the ids of each worker's devices, none twice,
/// [workers][devices].
struct AllocationTag {};

namespace placement {

/// The kinds of each worker's devices as text, "VRGQ".
[[nodiscard]] inline std::string letters(cluster::Cluster const& cluster,
                                         std::span<int const> devices) {
  std::string result;
  for (int const d : devices) result += cluster.device(d).kind;
  return result;
}

namespace detail {

[[noreturn, gnu::cold]] void refuse_allocation(char const* policy, char const* wants,
                                               char const* of, std::integral auto got) {
  raise(Errc::bad_configuration, policy, " wants ", wants, "; ", of, " is ", got);
}

}  // namespace detail

/// Worker h gets all devices of node h: the fastest links inside a worker, but unequal workers.
struct NodePartition {
  using policy_tag = AllocationTag;

  /// @throws Error  bad_configuration unless there are as many nodes as workers, with equally many
  ///                devices
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

/// Worker i gets the i-th device of every node: one partition suits all workers, but every stage
/// boundary crosses nodes.
struct EqualDistribution {
  using policy_tag = AllocationTag;

  /// @throws Error  bad_configuration unless every node has as many devices as there are workers
  [[nodiscard]] constexpr std::vector<std::vector<int>> allocate(cluster::Cluster const& cluster,
                                                                 int workers) const {
    std::vector<std::vector<int>> result;
    for (int n = 0; n < cluster.nodes(); ++n) {
      auto const devices = cluster.devices_of(n);
      if (std::cmp_not_equal(devices.size(), workers) || workers < 1)
        detail::refuse_allocation("EqualDistribution",
                                  "in every node as many devices as there are workers",
                                  "the number in one node", devices.size());
      result.resize(devices.size());
      for (std::size_t w = 0; w < result.size(); ++w) result[w].push_back(devices[w]);
    }
    return result;
  }
};

}  // namespace placement
}  // namespace stagger
