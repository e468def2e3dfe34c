// SPDX-License-Identifier: Apache-2.0
#pragma once
// The planners, compiled once for `plan` and for the tables of papers.

#include <stagger/partition/pipe_dream.hpp>
#include <stagger/plan/auto.hpp>
#include <stagger/plan/baselines.hpp>
#include <stagger/plan/dapple.hpp>
#include <stagger/plan/partitioned.hpp>

namespace tool {

using ByPipeDream = stagger::plan::Partitioned<stagger::partition::PipeDream>;

/// Runs a planner.
/// @throws stagger::plan::Infeasible  if no plan fits
[[nodiscard]] stagger::plan::Plan made(stagger::plan::Dapple const& planner,
                                       stagger::plan::Workload const& work);
[[nodiscard]] stagger::plan::Plan made(stagger::plan::Auto const& planner,
                                       stagger::plan::Workload const& work);
[[nodiscard]] stagger::plan::Plan made(stagger::plan::Straight const& planner,
                                       stagger::plan::Workload const& work);
[[nodiscard]] stagger::plan::Plan made(stagger::plan::DataParallel const& planner,
                                       stagger::plan::Workload const& work);
[[nodiscard]] stagger::plan::Plan made(ByPipeDream const& planner,
                                       stagger::plan::Workload const& work);

}  // namespace tool
