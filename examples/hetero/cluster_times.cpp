// SPDX-License-Identifier: Apache-2.0
#include "cluster_times.hpp"

#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>

#include <stagger/partition/min_max.hpp>
#include <stagger/placement/equal_distribution.hpp>
#include <stagger/placement/hybrid_distribution.hpp>
#include <stagger/placement/node_partition.hpp>
#include <stagger/placement/parameter_home.hpp>

#include "../stagger/hetpipe_models.hpp"
#include "command_line.hpp"

namespace hetero {

namespace sg = stagger;
namespace hetpipe = tool::hetpipe;

namespace {

/// A third of a layer's time is its forward.
sg::schedule::StageCosts stage_costs(double compute_s, double transfer_s) {
  return {.forward_s = compute_s / 3,
          .backward_input_s = compute_s / 3,
          .backward_weight_s = compute_s / 3,
          .transfer_s = transfer_s};
}

std::vector<std::vector<int>> allocate(std::string const& name, hetpipe::Cluster const& cluster) {
  namespace placement = sg::placement;
  if (name == "np") return placement::NodePartition{}.allocate(cluster, 4);
  if (name == "hd") return placement::HybridDistribution{}.allocate(cluster, 4);
  return placement::EqualDistribution{}.allocate(cluster, 4);
}

/// A worker's stages on its devices, as HetPipe's partitioner cuts them.
struct Virtual {
  sg::partition::Costs costs;
  sg::partition::Partition cut;
  sg::placement::Worker where;
};

Virtual cut(hetpipe::Profile const& profile, hetpipe::Cluster const& cluster,
            std::vector<int> const& devices, int in_flight) {
  Virtual made{sg::partition::costs(profile, cluster, devices), {}, {}};
  made.cut = sg::partition::MinMax{.any_order = true, .in_flight = in_flight}.partition(made.costs);
  made.where.cuts = made.cut.cuts;
  for (auto const& stage : made.cut.devices)
    made.where.nodes.push_back(cluster.device(stage.front()).node);
  return made;
}

WorkerTimes times_of(Virtual const& made, hetpipe::Cluster const& cluster) {
  WorkerTimes times;
  auto const index = [&](std::size_t stage) {
    int const id = made.cut.devices[stage].front();
    int at = 0;
    while (made.costs.place(at).id != id) ++at;
    return at;
  };
  std::size_t const stages = made.cut.devices.size();
  for (std::size_t s = 0; s < stages; ++s) {
    int const first = s == 0 ? 0 : made.cut.cuts[s - 1];
    int const last = s + 1 == stages ? made.costs.layers() : made.cut.cuts[s];
    double const transfer_s =
        s + 1 == stages ? 0 : made.costs.receive_s(index(s), index(s + 1), last);
    times.costs.stages.push_back(
        stage_costs(made.costs.compute_s(index(s), first, last), transfer_s));
    times.devices += cluster.device(made.cut.devices[s].front()).kind;
  }
  return times;
}

/// How long the busiest link takes for one push of every worker: between nodes, in each direction
/// by itself, or inside one.
double pushes_s(hetpipe::Profile const& profile, hetpipe::Cluster const& cluster,
                std::vector<Virtual> const& workers, bool local) {
  std::vector<sg::placement::Worker> where;
  for (Virtual const& worker : workers) where.push_back(worker.where);
  int const layers = static_cast<int>(profile.layers.size());
  auto const homes = local ? sg::placement::Local{}.homes(layers, cluster.nodes(), where)
                           : sg::placement::RoundRobin{}.homes(layers, cluster.nodes(), where);
  auto const nodes = static_cast<std::size_t>(cluster.nodes());
  std::vector<double> out(nodes), in(nodes), inside(nodes);
  for (auto const& worker : where)
    for (int l = 0; l < layers; ++l) {
      auto const from = static_cast<std::size_t>(worker.node_of(l));
      auto const to = static_cast<std::size_t>(homes[static_cast<std::size_t>(l)]);
      auto const bytes =
          static_cast<double>(profile.layers[static_cast<std::size_t>(l)].parameter_bytes);
      if (from == to) {
        inside[from] += bytes;
      } else {
        out[from] += bytes;
        in[to] += bytes;
      }
    }
  double longest = 0;
  for (std::size_t n = 0; n < nodes; ++n) {
    longest = std::max(longest, std::max(out[n], in[n]) / cluster.inter.bytes_per_s);
    longest = std::max(longest, inside[n] / cluster.intra[n].bytes_per_s);
  }
  return longest;
}

ClusterTimes hetpipe_times(Settings const& s) {
  auto const profile = s.cluster == "vgg-19" ? hetpipe::vgg19() : hetpipe::resnet152();
  auto const cluster = hetpipe::usable();
  ClusterTimes times;
  std::vector<Virtual> workers;
  for (auto const& devices : allocate(s.allocation, cluster)) {
    try {
      workers.push_back(cut(profile, cluster, devices, static_cast<int>(s.in_flight)));
    } catch (sg::partition::DoesNotFit const&) {
      int most = static_cast<int>(s.in_flight) - 1;
      while (most > 0 && hetpipe::throughput(profile, cluster, {devices}, most) <= 0) --most;
      cli::refuse("--in-flight " + std::to_string(s.in_flight) +
                  " does not fit into the memory of " + sg::placement::letters(cluster, devices) +
                  ", worker " + std::to_string(workers.size()) + "; use " +
                  (most > 0 ? "at most " + std::to_string(most) + ", or " : std::string()) +
                  "another --allocation");
    }
    times.workers.push_back(times_of(workers.back(), cluster));
  }
  times.pushes_s = pushes_s(profile, cluster, workers, s.parameters == "local");
  times.images = hetpipe::batch;
  times.where = profile.name + " on HetPipe's 16 GPUs";
  return times;
}

ClusterTimes equal_times(Settings const& s) {
  ClusterTimes times;
  sg::schedule::Costs costs;
  costs.stages.assign(static_cast<std::size_t>(s.stages), stage_costs(1, 0));
  times.workers.assign(static_cast<std::size_t>(s.workers), {"", costs});
  times.images = static_cast<double>(s.batch);
  times.where = "equal stages of 1 s";
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
