// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Predictions for an existing plan by another profile or cluster than it was made for.

#include <algorithm>
#include <cstddef>
#include <vector>

#include <stagger/core/error.hpp>
#include <stagger/plan/bound.hpp>
#include <stagger/plan/evaluate.hpp>
#include <stagger/plan/latency.hpp>
#include <stagger/plan/plan.hpp>
#include <stagger/plan/simulate.hpp>
#include <stagger/plan/workload.hpp>

namespace stagger::plan {

/// The plan with its predictions made anew; stages, devices, microbatches and warm-up stay as they
/// are, whether they fit the memory or not.
/// @param w       its request says the batch; microbatches are the plan's
/// @throws Error  bad_configuration for stages or devices that the workload does not have, or more
///                microbatches than samples
[[nodiscard]] inline Plan predict(Workload const& w, Plan plan) {
  require_draft(w, draft_of(plan, 0));
  int const M = plan.microbatches;
  if (M < 1 || M > w.request().batch)
    raise(Errc::bad_configuration, "a batch of ", counted(w.request().batch, "sample"),
          " cannot be cut into ", counted(M, "microbatch"), "; plan for this batch");
  Flow const f{M, static_cast<double>(w.request().batch) / M};
  std::vector<int> counts;
  for (std::size_t i = 0; i < plan.stages.size(); ++i) {
    StageMemory const m = detail::cost_stage(w, f, plan, i);
    PlanStage& s = plan.stages[i];
    s.memory_bytes = m.bytes(std::min(s.warm_up, M));
    counts.push_back(s.warm_up);
  }
  std::vector<StageTime> times;
  detail::cost_transfers(w, f, plan, times);
  plan.batch = w.request().batch;
  plan.estimate = latency(times, M);
  plan.simulated_s = simulate(times, M, counts);
  detail::rate(w, lower_bound_s(w), plan);
  return plan;
}

}  // namespace stagger::plan
