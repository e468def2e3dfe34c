// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   HetPipe's planner: the devices and cuts of virtual workers, the minibatches in flight,
///         and the placement of parameters, found by simulating all workers together.
/// @source J. H. Park et al., "HetPipe", USENIX ATC 2020, sections 4 and 8.

#include <algorithm>
#include <cstddef>
#include <exception>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <stagger/cluster/cluster.hpp>
#include <stagger/cluster/profile.hpp>
#include <stagger/core/error.hpp>
#include <stagger/partition/costs.hpp>
#include <stagger/partition/min_max.hpp>
#include <stagger/placement/catalog.hpp>
#include <stagger/plan/workers_plan.hpp>
#include <stagger/schedule/play_workers.hpp>

namespace stagger::plan {

namespace detail {

/// Whether the devices of two workers differ at most in their numbers.
[[nodiscard]] inline bool alike(partition::Costs const& a, partition::Costs const& b) {
  return std::equal(a.places.begin(), a.places.end(), b.places.begin(), b.places.end(),
                    [](auto const& x, auto const& y) { return x.alike(y); }) &&
         a.until_s == b.until_s;
}

/// @throws Error  bad_configuration for a model that lets a worker be further ahead
inline void require_distance(schedule::WaveModel const& model, int distance, int minibatches) {
  for (int m = 0; model.minibatches() > 0 && m < minibatches; ++m)
    if (int const ahead = (m + 1) / model.minibatches() - 1 - model.needs(m); ahead > distance)
      raise(Errc::bad_configuration, "the staleness model lets minibatch ", m, " begin ", ahead,
            " waves ahead of the slowest worker, but VirtualWorkers::distance is ", distance,
            ", by which memory is counted; let it be as many as the model allows");
}

/// Notes which device keeps a worker from having two minibatches in flight.
/// @param cut  (devices) cuts a worker for two; throws partition::DoesNotFit
template <class Cut> void note_limits(WorkersPlan& plan, Cut cut) {
  for (VirtualWorker& worker : plan.workers) {
    if (worker.stages.size() < 2) continue;  // one stage is always filled
    std::vector<int> devices;
    for (WorkerStage const& stage : worker.stages) devices.push_back(stage.device);
    try {
      cut(devices);
    } catch (partition::DoesNotFit const& error) {
      worker.limiting_device = error.shortage().device;
      worker.wanted_bytes = error.shortage().needed_bytes;
    }
  }
}

}  // namespace detail

/// Tries all requested allocations, placements of parameters and numbers of minibatches in flight,
/// and takes those with the highest throughput of all workers together; if several are equal, the
/// fewest in flight, then the first allocation and placement. Cuts and the order of a worker's
/// devices are those of partition::MinMax, under each device's memory.
///
/// A layer's pushes and pulls use the link of the node that keeps it, which all workers share, or
/// the link inside that node if the stage is on it.
struct VirtualWorkers {
  int workers = 4;
  int distance = 0;         ///< D >= 0: how many waves a worker may be ahead of the slowest
  int in_flight = 0;        ///< Nm >= 1 of each worker; 0: the best, up to most_in_flight
  int most_in_flight = 8;   ///< >= 1
  double state_copies = 0;  ///< >= 0: bytes of the optimizer's state over those of the parameters
  std::vector<placement::Allocation> allocations = placement::Allocation::all();
  std::vector<placement::ParameterPlacement> parameters = placement::ParameterPlacement::all();
  schedule::Sharing sharing = schedule::Sharing::fair;  ///< of links
  schedule::Duplex duplex = schedule::Duplex::full;     ///< likewise

  /// @throws Error  bad_data for a bad profile or cluster; bad_configuration for numbers that
  ///                nothing can have, and, if nothing is possible, for why the first of it is not:
  ///                a cluster that cannot be divided so, or workers without memory, naming the
  ///                first of them and how many minibatches in flight fit
  [[nodiscard]] WorkersPlan plan(cluster::Profile const& profile,
                                 cluster::Cluster const& cluster) const {
    return plan(profile, cluster, [&](int n) { return staleness::WaveSynchronous{n, distance}; });
  }
  /// The same for a staleness model of one's own, of which `distance` is the most waves that a
  /// worker may be ahead, by which memory is counted.
  /// @param model_of  (minibatches in flight) -> the model
  template <class ModelOf>
  [[nodiscard]] WorkersPlan plan(cluster::Profile const& profile, cluster::Cluster const& cluster,
                                 ModelOf model_of) const {
    require();
    require_profile(profile);
    require_cluster(cluster);
    std::optional<WorkersPlan> best;
    std::exception_ptr why;
    int candidates = 0;
    auto possible = allocations;
    for (int n = std::max(in_flight, 1); n <= (in_flight > 0 ? in_flight : most_in_flight); ++n) {
      schedule::WaveModel const model = model_of(n);
      detail::require_distance(model, distance, 4 * quarter_of(n));
      std::erase_if(possible, [&](placement::Allocation allocation) {
        try {
          WorkersPlan const cut = cut_all(profile, cluster, allocation, n);
          for (placement::ParameterPlacement const kind : parameters) {
            std::optional<WorkersPlan> made = placed(cut, cluster, kind, why);
            if (!made) continue;
            evaluate(*made, model);
            ++candidates;
            if (!best || made->samples_per_s > best->samples_per_s * (1 + 1e-9))
              best = std::move(made);
          }
          return false;
        } catch (Error const&) {
          if (!why) why = std::current_exception();
          return true;  // it would not fit with more in flight either
        }
      });
    }
    if (!best) std::rethrow_exception(why);
    best->candidates = candidates;
    if (best->in_flight == 1)
      detail::note_limits(*best, [&](std::vector<int> const& devices) {
        static_cast<void>(cut(partition::costs(profile, cluster, devices), 2));
      });
    return *std::move(best);
  }

 private:
  static constexpr int most = 10000;  // in flight, and distance

  /// Copies of its parameters that a stage has: those of the exchange, the gradient, the optimizer
  /// state.
  [[nodiscard]] double copies(int n) const { return n + distance + 3 + 1 + state_copies; }

  /// A quarter of the minibatches that are simulated.
  [[nodiscard]] int quarter_of(int n) const { return std::max(6, distance + 2) * n; }

  void require() const {
    auto const check = [](bool holds, char const* what, auto value, char const* instead) {
      if (!holds) raise(Errc::bad_configuration, what, " cannot be ", value, "; ", instead);
    };
    check(workers >= 1, "VirtualWorkers::workers", workers, "plan for 1 or more");
    check(distance >= 0 && distance <= most, "VirtualWorkers::distance", distance,
          "let it be 0 to 10 000");
    check(in_flight >= 0 && in_flight <= most, "VirtualWorkers::in_flight", in_flight,
          "give 1 to 10 000, or 0 for whatever is best");
    check(most_in_flight >= 1 && most_in_flight <= most, "VirtualWorkers::most_in_flight",
          most_in_flight, "give 1 to 10 000");
    check(state_copies >= 0 && state_copies <= 1e6, "VirtualWorkers::state_copies", state_copies,
          "give the bytes of the optimizer's state over those of the parameters");
    check(!allocations.empty(), "VirtualWorkers::allocations", "empty", "give one or more");
    check(!parameters.empty(), "VirtualWorkers::parameters", "empty", "give one or more");
  }

  [[nodiscard]] partition::Partition cut(partition::Costs costs, int n) const {
    costs.parameter_copies = copies(n);
    return partition::MinMax{.any_order = true, .in_flight = n}.partition(costs);
  }

  /// The cuts of all workers, without the placement of parameters and predictions.
  [[nodiscard]] WorkersPlan cut_all(cluster::Profile const& profile,
                                    cluster::Cluster const& cluster,
                                    placement::Allocation allocation, int n) const {
    WorkersPlan plan{
        .allocation = allocation, .in_flight = n, .distance = distance, .batch = profile.batch};
    for (auto const& layer : profile.layers) plan.layer_bytes.push_back(layer.parameter_bytes);
    std::vector<partition::Costs> costs;
    std::vector<partition::Partition> found;
    std::vector<std::vector<int>> groups;
    allocation.visit([&](auto const& policy) { groups = policy.allocate(cluster, workers); });
    for (std::size_t w = 0; w < groups.size(); ++w) {
      costs.push_back(partition::costs(profile, cluster, groups[w]));
      auto const same = std::find_if(costs.begin(), costs.end() - 1, [&](auto const& other) {
        return detail::alike(other, costs.back());
      });
      if (same + 1 != costs.end()) {
        auto const other = static_cast<std::size_t>(same - costs.begin());
        found.push_back(found[other]);
        for (auto& stage : found.back().devices) {
          auto const at = std::find(groups[other].begin(), groups[other].end(), stage.front());
          stage.front() = groups[w].begin()[at - groups[other].begin()];
        }
      } else {
        try {
          found.push_back(cut(costs.back(), n));
        } catch (partition::DoesNotFit const& error) {
          refuse(error, costs.back(), w, placement::letters(cluster, groups[w]), n);
        }
      }
      plan.workers.push_back(worker_of(profile, cluster, found.back()));
    }
    return plan;
  }

  [[noreturn, gnu::cold]] void refuse(partition::DoesNotFit const& error,
                                      partition::Costs const& costs, std::size_t worker,
                                      std::string const& kinds, int n) const {
    auto const& shortage = error.shortage();
    int fits = 0;
    for (int above = n; above - fits > 1;) {  // the more in flight, the more memory
      int const half = fits + (above - fits) / 2;
      try {
        static_cast<void>(cut(costs, half));
        fits = half;
      } catch (partition::DoesNotFit const&) {
        above = half;
      }
    }
    raise(Errc::bad_configuration, "worker ", worker, " (", kinds, ") has no memory for ", n,
          " minibatches in flight: its stage ", shortage.stage, " would need ",
          sized(shortage.needed_bytes), " of ", sized(shortage.available_bytes), " on device ",
          shortage.device, "; ",
          fits > 0 ? text("the most that fits is ", fits)
                   : text("not even 1 fits: give it ", shortage.memory_factor,
                          " times the memory, other devices",
                          distance > 0 ? ", or a smaller distance" : ""));
  }

  [[nodiscard]] static VirtualWorker worker_of(cluster::Profile const& profile,
                                               cluster::Cluster const& cluster,
                                               partition::Partition const& found) {
    VirtualWorker worker;
    auto const bounds = partition::detail::bounds_of(found.cuts, profile.size());
    for (std::size_t s = 0; s < found.devices.size(); ++s) {
      int const device = found.devices[s].front();
      WorkerStage stage{.first = bounds[s],
                        .last = bounds[s + 1] - 1,
                        .device = device,
                        .node = cluster.device(device).node,
                        .memory_bytes = static_cast<double>(found.memory_bytes[s]),
                        .capacity_bytes = static_cast<double>(cluster.device(device).memory_bytes)};
      for (int l = stage.first; l <= stage.last; ++l) {
        auto const times = cluster.times(profile.layer(l), device);
        stage.forward_s += times.forward_s;
        stage.backward_s += times.backward_s;
      }
      if (s + 1 < found.devices.size())
        stage.transfer_s =
            cluster.transfer_s(device, found.devices[s + 1].front(),
                               static_cast<double>(profile.layer(stage.last).activation_bytes));
      worker.stages.push_back(stage);
    }
    return worker;
  }

  /// The plan with a placement of parameters; empty if the workers do not fit this placement, and
  /// `why` is then the reason unless it has one.
  [[nodiscard]] std::optional<WorkersPlan> placed(WorkersPlan plan, cluster::Cluster const& cluster,
                                                  placement::ParameterPlacement kind,
                                                  std::exception_ptr& why) const {
    plan.parameters = kind;
    std::vector<placement::Worker> all;
    for (VirtualWorker const& worker : plan.workers) {
      all.push_back({.cuts = worker.cuts(), .nodes = {}});
      for (WorkerStage const& stage : worker.stages) all.back().nodes.push_back(stage.node);
    }
    int const layers = static_cast<int>(plan.layer_bytes.size());
    try {
      kind.visit([&](auto const& policy) {
        plan.layer_nodes = policy.layer_nodes(layers, cluster.nodes(), all);
      });
    } catch (Error const&) {
      if (!why) why = std::current_exception();
      return std::nullopt;
    }
    auto const add = [&](cluster::Link const& link) {
      plan.links.push_back({.rate = link.bytes_per_s,
                            .latency_s = link.alpha_s,
                            .sharing = sharing,
                            .duplex = duplex});
    };
    for (int node = 0; node < cluster.nodes(); ++node) add(cluster.inter);
    for (cluster::Link const& link : cluster.intra) add(link);
    return plan;
  }

  /// Simulates all workers. Throughput is that of the slowest worker in the middle half.
  void evaluate(WorkersPlan& plan, schedule::WaveModel const& model) const {
    int const quarter = quarter_of(plan.in_flight);
    auto const played = schedule::play_workers(plan.played(), plan.server(model), 4 * quarter);
    double from_s = 0, to_s = 0;
    for (std::size_t w = 0; w < played.size(); ++w) {
      VirtualWorker& worker = plan.workers[w];
      schedule::Timeline const& timeline = played[w].timeline;
      int back = 0;  // minibatches
      double end_s = 0;
      for (schedule::Span const& span : timeline.row(0)) {
        if (span.action.kind != schedule::Kind::backward) continue;
        end_s = span.end_s;
        ++back;
        if (back == quarter) from_s = std::max(from_s, span.end_s);
        if (back == 3 * quarter) to_s = std::max(to_s, span.end_s);
      }
      for (std::size_t s = 0; s < timeline.row_begin.size(); ++s)
        worker.stages[s].busy =
            4 * quarter * (worker.stages[s].forward_s + worker.stages[s].backward_s) / end_s;
      worker.waiting = played[w].waiting_s / end_s;
      worker.idle = played[w].idle_waiting_s / end_s;
    }
    if (!(to_s > from_s))
      raise(Errc::bad_data,
            "minibatches take these workers no time, so that nothing tells plans apart; give a "
            "profile of layers that take time");
    plan.samples_per_s =
        static_cast<double>(plan.workers.size()) * 2 * quarter * plan.batch / (to_s - from_s);
  }
};

}  // namespace stagger::plan
