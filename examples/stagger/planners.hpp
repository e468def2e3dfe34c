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

/// Runs a planner: Dapple, Auto, Straight, DataParallel or ByPipeDream.
/// @throws stagger::plan::Infeasible  if no plan fits
template <class Planner>
[[nodiscard]] stagger::plan::Plan made(Planner const& planner, stagger::plan::Workload const& work);

}  // namespace tool
