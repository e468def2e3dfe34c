// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The adapter that makes a partitioner by cost a policy of a pipeline.

#include <vector>

#include <stagger/core/error.hpp>
#include <stagger/partition/costs.hpp>
#include <stagger/partition/policy.hpp>

namespace stagger::partition {

/// A partitioner by cost together with the costs that it uses, as a policy:
///
///     auto costs = partition::costs(profile, cluster, devices);
///     auto train = Pipeline{model}.with(partition::Weighed{partition::MinMax{}, costs}, ...);
template <CostPolicy P> struct Weighed {
  using policy_tag = PartitionTag;
  P policy{};
  Costs costs{};

  /// @throws Error  mismatch if the model has another number of layers than the profile; what the
  ///                partitioner throws
  [[nodiscard]] constexpr std::vector<int> cuts(int layers) const {
    if (layers != costs.layers())
      raise(Errc::mismatch, "the model has ", counted(layers, "layer"), ", its profile ",
            costs.layers(), "; profile the model that is cut");
    return policy.partition(costs).cuts;
  }
};
template <class P> Weighed(P, Costs) -> Weighed<P>;

}  // namespace stagger::partition
