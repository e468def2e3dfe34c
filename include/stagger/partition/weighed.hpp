// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A partitioner by cost as the policy of a pipeline, which knows no costs.

#include <vector>

#include <stagger/core/error.hpp>
#include <stagger/partition/costs.hpp>
#include <stagger/partition/policy.hpp>

namespace stagger::partition {

/// A partitioner together with the costs that it uses:
///
///     auto costs = partition::costs(profile, cluster, devices);
///     auto train = Pipeline{model}.with(partition::Weighed{partition::MinMax{}, costs}, ...);
template <CostPolicy P> struct Weighed {
  using policy_tag = PartitionTag;
  P policy{};
  Costs costs{};

  /// @throws Error  mismatch if the model has another number of layers than the profile; else what
  ///                the policy throws
  [[nodiscard]] constexpr std::vector<int> cuts(int layers) const {
    if (layers != costs.layers())
      raise(Errc::mismatch, "the model has ", counted(layers, "layer"), ", its profile ",
            costs.layers(), "; profile the model that is cut");
    return policy.partition(costs).cuts;
  }
};
template <class P> Weighed(P, Costs) -> Weighed<P>;

}  // namespace stagger::partition
