// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The node on which the parameter server keeps each layer, and the bytes that travel.
/// @source J. H. Park et al., "HetPipe", USENIX ATC 2020, section 8.1: default placement and local.

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include <stagger/core/error.hpp>

namespace stagger {

/// Marks a choice of the node that keeps each layer's parameters. `layer_nodes(layers, nodes,
/// workers)` returns [layers] a node each.
struct ParameterPlacementTag {};

namespace placement {

/// One virtual worker's pipeline.
struct Worker {
  std::vector<int> cuts{};   ///< [stages - 1] first layer of each stage after the first
  std::vector<int> nodes{};  ///< [stages] node of each stage
  friend constexpr bool operator==(Worker const&, Worker const&) = default;

  /// The node on which a layer runs.
  [[nodiscard]] constexpr int node_of(int layer) const {
    std::size_t stage = 0;
    while (stage < cuts.size() && cuts[stage] <= layer) ++stage;
    return nodes[stage];
  }
};

}  // namespace placement

namespace placement {

/// Bytes over the links between nodes, for one virtual worker.
struct Traffic {
  std::uint64_t parameters_per_wave = 0;        ///< pushed and pulled
  std::uint64_t activations_per_minibatch = 0;  ///< and their gradients, over the cuts
};

/// @param parameter_bytes  [layers]
/// @param boundary_bytes   [layers] crossing after each layer
/// @param layer_nodes      [layers] that keep the parameters
[[nodiscard]] constexpr Traffic traffic(std::span<std::uint64_t const> parameter_bytes,
                                        std::span<std::uint64_t const> boundary_bytes,
                                        Worker const& worker, std::span<int const> layer_nodes) {
  if (parameter_bytes.size() != layer_nodes.size() || boundary_bytes.size() != layer_nodes.size())
    raise(Errc::bad_configuration, "there are parameters of ", parameter_bytes.size(),
          " layers, boundaries of ", boundary_bytes.size(), " and nodes for ", layer_nodes.size(),
          "; give one for each layer");
  Traffic result;
  for (std::size_t l = 0; l < layer_nodes.size(); ++l)
    if (layer_nodes[l] != worker.node_of(static_cast<int>(l)))
      result.parameters_per_wave += 2 * parameter_bytes[l];
  for (std::size_t l = 0, stage = 0; l < layer_nodes.size() && stage < worker.cuts.size(); ++l) {
    if (std::cmp_not_equal(l + 1, worker.cuts[stage])) continue;  // no cut after this layer
    if (worker.nodes[stage] != worker.nodes[stage + 1])
      result.activations_per_minibatch += 2 * boundary_bytes[l];
    ++stage;
  }
  return result;
}

/// Layer i is kept on node i mod nodes: the load is spread over all nodes.
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

/// A layer is kept where it runs, so that no parameters travel between nodes. Every worker must
/// have the same cuts on the same nodes, as EqualDistribution gives them.
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
              " has other cuts or nodes than worker 0; Local needs them "
              "equal, use EqualDistribution or RoundRobin");
    std::vector<int> result;
    for (int l = 0; l < layers; ++l) result.push_back(workers.front().node_of(l));
    return result;
  }
};

}  // namespace placement
}  // namespace stagger
