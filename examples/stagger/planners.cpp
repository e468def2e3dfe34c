// SPDX-License-Identifier: Apache-2.0
#include "planners.hpp"

namespace tool {

namespace plan = stagger::plan;

template <class Planner> plan::Plan made(Planner const& planner, plan::Workload const& work) {
  return planner.plan(work);
}
template plan::Plan made(plan::Dapple const&, plan::Workload const&);
template plan::Plan made(plan::Auto const&, plan::Workload const&);
template plan::Plan made(plan::Straight const&, plan::Workload const&);
template plan::Plan made(plan::DataParallel const&, plan::Workload const&);
template plan::Plan made(ByPipeDream const&, plan::Workload const&);

}  // namespace tool
