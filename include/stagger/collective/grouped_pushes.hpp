// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Pushes of a worker's gradients to its parameter server while the last backward of a step
///         still runs.

#include <cstdint>
#include <memory>
#include <vector>

#include <stagger/collective/alpha_beta.hpp>
#include <stagger/collective/grouping/optimal.hpp>
#include <stagger/collective/grouping/policy.hpp>
#include <stagger/collective/parameter_server.hpp>
#include <stagger/collective/policy.hpp>

namespace stagger::collective {

/// Collective policy: a worker of a parameter server that pushes the layers of a stage in the
/// groups that a grouping policy chooses, each as soon as the stage's last backward has come so
/// far, and asks for their new weights. So the exchange hides behind the backward that still runs.
/// Without it a step pushes all layers when all of its gradients are there.
///
/// A grouping that uses times is given medians: after one warm-up step each layer is a group of its
/// own for `measured_steps` steps, in which its backward is timed. The groups hold from the next
/// step on, and do not change any bit.
///
/// If a step fails, the groups that it has pushed stay pushed. Of a stage with several replicas a
/// group is pushed when all of them have its gradients; on GPUs when the step ends.
///
/// @code
///     pipeline.with(collective::GroupedPushes{server.worker(0), collective::grouping::Optimal{},
///                                             {.startup_s = 20e-6, .per_byte_s = 0.8e-9}},
///                   staleness::Synchronous{}, loss, host::Threads{2});
/// @endcode
template <GroupingPolicy G = grouping::Optimal> struct GroupedPushes {
  using policy_tag = CollectiveTag;

  ServerWorker worker;
  G grouping{};
  CostLine line{};  ///< of a push over the link to the server; host::probe measures a link
  int measured_steps = detail::uses_times<G>() ? 5 : 0;  ///< >= 0; with 0 no times are given
  std::int64_t renew_every = 0;  ///< steps after which all is measured and decided again; 0: never
  // For stages with replicas:
  static constexpr By by = By::slices;
  static constexpr bool shard_optimizer = false;

  [[nodiscard]] std::shared_ptr<stagger::detail::ParameterLink> link() const {
    return worker.link();
  }
  [[nodiscard]] std::vector<LayerGroup> groups(Backward const& backward, CostLine) const {
    return grouping.groups(backward, line);
  }
};
template <class G> GroupedPushes(ServerWorker, G, CostLine = {}) -> GroupedPushes<G>;
GroupedPushes(ServerWorker) -> GroupedPushes<>;

}  // namespace stagger::collective
