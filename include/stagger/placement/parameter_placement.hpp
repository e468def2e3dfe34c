// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Placements of parameters: the node on which a parameter server keeps each layer.
/// @source J. H. Park et al., "HetPipe", USENIX ATC 2020, section 8.1: default placement and local.

#include <cstddef>
#include <span>
#include <vector>

#include <stagger/core/error.hpp>

namespace stagger {

/// Marks a placement of parameters. `layer_nodes(layers, nodes, workers)` returns the node of each
/// layer, [layers].
struct ParameterPlacementTag {};

namespace placement {

/// The pipeline of one virtual worker.
struct Worker {
  std::vector<int> cuts{};   ///< [stages - 1] first layer of each stage after the first
  std::vector<int> nodes{};  ///< [stages] node of each stage
  friend constexpr bool operator==(Worker const&, Worker const&) = default;

  [[nodiscard]] constexpr int node_of(int layer) const {
    std::size_t stage = 0;
    while (stage < cuts.size() && cuts[stage] <= layer) ++stage;
    return nodes[stage];
  }
};

/// Keeps layer i on node i mod nodes, which spreads the load over all nodes.
struct RoundRobin {
  using policy_tag = ParameterPlacementTag;

  [[nodiscard]] constexpr std::vector<int> layer_nodes(int layers, int nodes,
                                                       std::span<Worker const> /*workers*/) const {
    if (nodes < 1) raise(Errc::bad_configuration, nodes, " nodes have no room; give 1 or more");
    std::vector<int> result;
    for (int l = 0; l < layers; ++l) result.push_back(l % nodes);
    return result;
  }
};

/// Keeps each layer on the node that runs it, so that no parameters are sent between nodes. Every
/// worker must have the same cuts on the same nodes, as with EqualDistribution.
struct Local {
  using policy_tag = ParameterPlacementTag;

  /// @throws Error  bad_configuration if two workers differ
  [[nodiscard]] constexpr std::vector<int> layer_nodes(int layers, int /*nodes*/,
                                                       std::span<Worker const> workers) const {
    if (workers.empty())
      raise(Errc::bad_configuration, "Local needs a worker to follow; give one or more");
    for (std::size_t w = 0; w < workers.size(); ++w)
      if (!(workers[w] == workers.front()))
        raise(Errc::bad_configuration, "worker ", w,
              " has other cuts or nodes than worker 0; local parameters need equal cuts on the "
              "same nodes, use EqualDistribution or RoundRobin");
    std::vector<int> result;
    for (int l = 0; l < layers; ++l) result.push_back(workers.front().node_of(l));
    return result;
  }
};

}  // namespace placement
}  // namespace stagger
