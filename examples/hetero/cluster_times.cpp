// SPDX-License-Identifier: Apache-2.0
#include "cluster_times.hpp"

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include <stagger/core/error.hpp>
#include <stagger/plan/virtual_workers.hpp>

#include "../stagger/hetpipe_models.hpp"
#include "command_line.hpp"

namespace hetero {

namespace sg = stagger;
namespace hetpipe = tool::hetpipe;

namespace {

/// The nodes whose GPUs the letters name, each with its four.
hetpipe::Cluster nodes_of(hetpipe::Cluster const& whole, std::string const& letters) {
  hetpipe::Cluster part = whole;
  part.devices.clear();
  part.intra.clear();
  for (char const letter : letters) {
    int node = 0;
    for (auto device : whole.devices) {
      if (device.kind != std::string(1, letter)) continue;
      node = device.node;
      device.node = static_cast<int>(part.intra.size());
      part.devices.push_back(device);
    }
    part.intra.push_back(whole.intra[static_cast<std::size_t>(node)]);
  }
  return part;
}

/// How long the busiest of the server's links takes for one push of every worker.
double pushes_s(sg::plan::WorkersPlan const& plan) {
  std::vector<double> bytes(plan.links.size());
  for (auto const& worker : plan.played())
    for (std::size_t l = 0; l < plan.layer_bytes.size(); ++l)
      bytes[static_cast<std::size_t>(worker.layer_links[l])] +=
          static_cast<double>(plan.layer_bytes[l]);
  double longest_s = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i)
    longest_s = std::max(longest_s, bytes[i] / plan.links[i].rate);
  return longest_s;
}

ClusterTimes hetpipe_times(Settings const& s) {
  auto const profile = s.cluster == "vgg-19" ? hetpipe::vgg19() : hetpipe::resnet152();
  auto const cluster =
      nodes_of(s.paper.empty() ? hetpipe::usable() : hetpipe::with_servers(), s.gpus);
  sg::plan::VirtualWorkers const planner{
      .workers = static_cast<int>(s.workers),
      // Published runs kept no waves, so that any distance fitted; all have the same cuts.
      .distance = s.sync == "wsp" && s.paper.empty() ? static_cast<int>(s.distance) : 0,
      .in_flight = static_cast<int>(s.in_flight),
      .allocations = {sg::placement::Allocation(s.allocation)},
      .parameters = {sg::placement::ParameterPlacement(s.parameters)}};
  sg::plan::WorkersPlan plan;
  try {
    plan = planner.plan(profile, cluster);
  } catch (sg::Error const& error) {
    cli::refuse("--in-flight " + std::to_string(s.in_flight) + ": " + error.what());
  }
  ClusterTimes times;
  for (auto const& worker : plan.workers) {
    times.workers.push_back({"", worker.costs()});
    for (auto const& stage : worker.stages)
      times.workers.back().devices += cluster.device(stage.device).kind;
  }
  times.pushes_s = pushes_s(plan);
  times.images = hetpipe::batch;
  return times;
}

ClusterTimes equal_times(Settings const& s) {
  ClusterTimes times;
  sg::schedule::Costs costs;
  double const third_s = s.minibatch_s / 3;
  costs.stages.assign(static_cast<std::size_t>(s.stages), {third_s, third_s, third_s});
  times.workers.assign(static_cast<std::size_t>(s.workers), {"", costs});
  times.images = static_cast<double>(s.batch);
  return times;
}

}  // namespace

ClusterTimes times_of(Settings const& s) {
  ClusterTimes times = s.cluster == "equal" ? equal_times(s) : hetpipe_times(s);
  if (s.link > 0) {  // r = N S / (b T_c), where T_c is what the busiest stage of any computes
    double most_s = 0;
    for (auto const& worker : times.workers)
      for (auto const& stage : worker.costs.stages)
        most_s =
            std::max(most_s, stage.forward_s + stage.backward_input_s + stage.backward_weight_s);
    times.pushes_s = s.link * most_s * static_cast<double>(s.in_flight);
  }
  return times;
}

}  // namespace hetero
