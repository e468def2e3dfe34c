// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A plan for workers that train one model through a parameter server: devices, cuts and
///         order of actions of each, and the node that keeps each layer.

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <stagger/placement/catalog.hpp>
#include <stagger/schedule/costs.hpp>
#include <stagger/schedule/fifo.hpp>
#include <stagger/schedule/links.hpp>
#include <stagger/schedule/wave_workers.hpp>
#include <stagger/staleness/wave_synchronous.hpp>

namespace stagger::plan {

/// One stage of a worker, on a device of its own.
struct WorkerStage {
  int first = 0;  ///< first layer
  int last = 0;   ///< last layer, included
  int device = 0;
  int node = 0;                          ///< of the device
  double forward_s = 0, backward_s = 0;  ///< of a minibatch
  double transfer_s = 0;                 ///< of a minibatch to the next stage; 0 for the last
  double busy = 0;                       ///< share of time in which it works, 0 to 1
  double memory_bytes = 0;               ///< with the engine's copies of its parameters
  double capacity_bytes = 0;             ///< of the device
  friend bool operator==(WorkerStage const&, WorkerStage const&) = default;
};

/// One pipeline of the plan.
struct VirtualWorker {
  std::vector<WorkerStage> stages{};
  double waiting = 0;  ///< share of its time in which a minibatch's input waits for waves
  double idle = 0;     ///< the part of `waiting` in which none of its stages works
  /// The device that has no memory for a second minibatch in flight, without which stages work one
  /// after the other; -1: none, or more are in flight.
  int limiting_device = -1;
  double wanted_bytes = 0;  ///< of that device, for two

  /// [stages - 1] first layer of each stage after the first
  [[nodiscard]] std::vector<int> cuts() const {
    std::vector<int> result;
    for (std::size_t s = 1; s < stages.size(); ++s) result.push_back(stages[s].first);
    return result;
  }
  /// The costs for schedules and sim::VirtualClock.
  [[nodiscard]] schedule::Costs costs() const {
    schedule::Costs result;
    for (WorkerStage const& stage : stages)
      result.stages.push_back({.forward_s = stage.forward_s,
                               .backward_input_s = stage.backward_s,
                               .backward_weight_s = 0,
                               .transfer_s = stage.transfer_s});
    return result;
  }
  friend bool operator==(VirtualWorker const&, VirtualWorker const&) = default;
};

/// A plan as a value, with predictions.
struct WorkersPlan {
  placement::Allocation allocation{};
  placement::ParameterPlacement parameters{};
  int in_flight = 1;  ///< Nm, of each worker
  int distance = 0;   ///< D
  int batch = 0;      ///< samples of a minibatch
  std::vector<VirtualWorker> workers{};
  std::vector<std::uint64_t> layer_bytes{};  ///< [layers] of parameters
  std::vector<int> layer_nodes{};            ///< [layers] node that keeps each
  /// Links of the server: [nodes] to each node from the others, then [nodes] inside each.
  std::vector<schedule::Links> links{};
  double samples_per_s = 0;  ///< of all workers
  int candidates = 0;        ///< plans that were simulated to find this one

  /// The staleness model for which workers are planned if none of one's own is given.
  [[nodiscard]] constexpr staleness::WaveSynchronous waves() const { return {in_flight, distance}; }
  /// The server's data that all workers have in common.
  [[nodiscard]] schedule::WaveServer server() const { return server(waves()); }
  [[nodiscard]] schedule::WaveServer server(schedule::WaveModel model) const {
    return {in_flight, std::move(model), layer_bytes, links};
  }
  [[nodiscard]] std::vector<schedule::WaveWorker> played() const {
    std::vector<schedule::WaveWorker> result;
    for (VirtualWorker const& worker : workers) {
      result.push_back({worker.costs(), worker.cuts(), {}});
      for (WorkerStage const& stage : worker.stages)
        for (int l = stage.first; l <= stage.last; ++l) {
          int const node = layer_nodes[static_cast<std::size_t>(l)];
          int const nodes = static_cast<int>(links.size() / 2);
          result.back().layer_links.push_back(node == stage.node ? nodes + node : node);
        }
    }
    return result;
  }
  /// The schedule of a worker's pipeline, from a simulation of all workers.
  /// @param worker  0 <= worker < workers.size()
  [[nodiscard]] schedule::Fifo schedule(std::size_t worker) const {
    return schedule(worker, waves());
  }
  [[nodiscard]] schedule::Fifo schedule(std::size_t worker, schedule::WaveModel model) const {
    auto all = played();
    schedule::WaveWorker own = all[worker];
    all.erase(all.begin() + static_cast<std::ptrdiff_t>(worker));
    return {.in_flight = in_flight,
            .costs = own.costs,
            .gate = {std::move(model), links, layer_bytes, own.cuts, own.layer_links, all}};
  }
  friend bool operator==(WorkersPlan const&, WorkersPlan const&) = default;
};

}  // namespace stagger::plan
