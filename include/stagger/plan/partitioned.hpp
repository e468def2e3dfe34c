// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Plans from the stages that a partitioner finds.

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>

#include <stagger/partition/costs.hpp>
#include <stagger/plan/baselines.hpp>
#include <stagger/plan/evaluate.hpp>
#include <stagger/plan/plan.hpp>
#include <stagger/plan/workload.hpp>

namespace stagger::plan {

/// The stages of a partitioner by cost, such as partition::PipeDream or partition::MinMax, on the
/// devices that it chooses.
template <partition::CostPolicy Policy> struct Partitioned {
  Policy policy{};
  std::string name = "partitioned";  ///< of the plan

  /// @throws Error  what the partitioner throws
  [[nodiscard]] Draft draft(Workload const& w) const {
    auto const found = policy.partition(partition::costs(w.profile(), w.cluster(), w.devices()));
    Draft draft{.recompute = w.request().recompute};
    for (std::size_t s = 0; s < found.devices.size(); ++s) {
      Assignment stage{s == 0 ? 0 : found.cuts[s - 1],
                       s < found.cuts.size() ? found.cuts[s] : w.layers(), found.devices[s]};
      std::sort(stage.devices.begin(), stage.devices.end());
      draft.stages.push_back(std::move(stage));
    }
    return draft;
  }

  /// @throws Infeasible if the stages do not fit, or the batch is too small for them
  /// @throws Error       what the partitioner throws
  [[nodiscard]] Plan plan(Workload const& w) const {
    return detail::only(w, [&](Workload const& of) { return draft(of); }, name);
  }
};

}  // namespace stagger::plan
