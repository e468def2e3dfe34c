// SPDX-License-Identifier: Apache-2.0
#include "planners.hpp"

namespace tool {

namespace plan = stagger::plan;

plan::Plan made(plan::Dapple const& planner, plan::Workload const& work) {
  return planner.plan(work);
}
plan::Plan made(plan::Auto const& planner, plan::Workload const& work) {
  return planner.plan(work);
}
plan::Plan made(plan::Straight const& planner, plan::Workload const& work) {
  return planner.plan(work);
}
plan::Plan made(plan::DataParallel const& planner, plan::Workload const& work) {
  return planner.plan(work);
}
plan::Plan made(ByPipeDream const& planner, plan::Workload const& work) {
  return planner.plan(work);
}

}  // namespace tool
