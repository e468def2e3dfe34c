// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Plans of workers that share a parameter server, as a table.

#include <string>

#include <stagger/core/error.hpp>
#include <stagger/plan/workers_plan.hpp>
#include <stagger/report/format.hpp>
#include <stagger/report/table.hpp>

namespace stagger::report {

namespace detail {

/// A line for each worker whose stages work one after the other for lack of memory.
[[nodiscard]] inline std::string limits_of(plan::WorkersPlan const& plan) {
  std::string lines;
  for (std::size_t w = 0; w < plan.workers.size(); ++w)
    for (plan::WorkerStage const& stage : plan.workers[w].stages)
      if (stage.device == plan.workers[w].limiting_device)
        lines += text("worker ", w, " cannot fill its pipeline: two minibatches in flight need ",
                      format_bytes(plan.workers[w].wanted_bytes), ", and device ", stage.device,
                      " has ", format_bytes(stage.capacity_bytes), "\n");
  return lines;
}

}  // namespace detail

/// A table with a line for each stage of each worker, and below it what all have in common,
/// and which worker has memory for one minibatch only.
[[nodiscard]] inline std::string table(plan::WorkersPlan const& plan) {
  TextTable stages({"worker", "stage", "layers", "device", "node", "forward", "backward", "to next",
                    "busy", "memory", "of"});
  std::string waits, idle;
  for (std::size_t w = 0; w < plan.workers.size(); ++w) {
    plan::VirtualWorker const& worker = plan.workers[w];
    for (std::size_t s = 0; s < worker.stages.size(); ++s) {
      plan::WorkerStage const& stage = worker.stages[s];
      stages.add({s == 0 ? std::to_string(w) : std::string(), std::to_string(s),
                  text(stage.first, "-", stage.last), std::to_string(stage.device),
                  std::to_string(stage.node), format_seconds(stage.forward_s),
                  format_seconds(stage.backward_s),
                  s + 1 < worker.stages.size() ? format_seconds(stage.transfer_s) : "-",
                  format_percent(stage.busy), format_bytes(stage.memory_bytes),
                  format_bytes(stage.capacity_bytes)});
    }
    waits += text(w == 0 ? "" : ", ", format_percent(worker.waiting));
    idle += text(w == 0 ? "" : ", ", format_percent(worker.idle));
  }
  return stages.str() + text("\n", plan.allocation.name(), ", parameters ", plan.parameters.name(),
                             ", ", counted(plan.in_flight, "minibatch"), " of ",
                             counted(plan.batch, "sample"), " in flight in each worker, at most ",
                             counted(plan.distance, "wave"), " ahead\nthroughput  ",
                             format_fixed(plan.samples_per_s, 1), " samples/s, the best of ",
                             counted(plan.candidates, "plan"), " played\nwaiting     ", waits,
                             " of each worker's time\nidle while waiting  ", idle,
                             " of each worker's time\n", detail::limits_of(plan));
}

}  // namespace stagger::report
