// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   What a plan takes as it stands, by another profile or another cluster than it was made
/// for.

#include <cstddef>
#include <utility>
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
  std::size_t const S = plan.stages.size();
  std::vector<StageTime> times(2 * S - 1);
  std::vector<int> counts;
  double both = 0, transfers = 0;
  for (std::size_t i = 0; i < S; ++i) {
    PlanStage& s = plan.stages[i];
    Group const g = w.group(s.devices);
    double const slice = f.slice(g.replicas);
    s.time = w.time(s.first, s.last + 1, g.kinds, slice, plan.recompute);
    s.time.all_reduce_s = w.gradients_s(s.first, s.last + 1, g, slice, plan.recompute,
                                        plan.gradients == Gradients::overlapped);
    StageMemory const m = w.memory(s.first, s.last + 1, slice, plan.recompute);
    s.static_bytes = m.static_bytes;
    s.activation_bytes = m.each_bytes;
    s.memory_bytes = m.bytes(s.warm_up < M ? s.warm_up : M);
    s.capacity_bytes = g.capacity_bytes;
    times[2 * i] = s.time;
    both += s.time.forward_s + s.time.backward_s;
    counts.push_back(s.warm_up);
    s.transfer_s = 0;
    if (i + 1 == S) break;
    s.transfer_s = w.wire(s.devices, plan.stages[i + 1].devices)
                       .seconds(w.boundary_bytes(s.last + 1, f.microbatch));
    times[2 * i + 1] = {s.transfer_s, s.transfer_s, 0};
    transfers += s.transfer_s;
  }
  for (std::size_t i = 0; i < S; ++i) plan.stages[i].limit = detail::limit(plan, i);
  plan.batch = w.request().batch;
  plan.estimate = latency(times, M);
  plan.latency_s = plan.estimate.seconds;
  plan.simulated_s = simulate(times, M, counts);
  plan.lower_bound_s = lower_bound_s(w);
  plan.gap = plan.lower_bound_s > 0 ? plan.simulated_s / plan.lower_bound_s - 1 : 0;
  plan.speedup = plan.latency_s > 0 ? w.one_device_s() / plan.latency_s : 1;
  plan.acr = S > 1 && both > 0
                 ? transfers / static_cast<double>(S - 1) / (both / static_cast<double>(S))
                 : 0;
  plan.alpha = 2 * plan.acr;
  return plan;
}

}  // namespace stagger::plan
