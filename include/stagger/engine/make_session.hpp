// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The checks that a pipeline and a device fit together, before the machine is made.

#include <stagger/core/requirements.hpp>

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include <stagger/core/basic_algorithm.hpp>
#include <stagger/core/error.hpp>
#include <stagger/core/list.hpp>
#include <stagger/engine/detail/not_a_backend.hpp>
#include <stagger/engine/detail/session_on.hpp>

namespace stagger::detail {

/// Checks the result of a placement.
/// @param process  whether places are processes, each of which must have a rank
/// @throws Error  bad_configuration unless there is an existing place for each rank
[[nodiscard]] [[gnu::cold]] inline std::vector<int> checked_places(std::vector<int> place,
                                                                   int ranks, int places,
                                                                   bool process) {
  if (std::cmp_not_equal(place.size(), ranks))
    raise(Errc::bad_configuration, "the placement returned ", counted(place.size(), "place"),
          " for ", counted(ranks, "rank"), "; it must name one for each");
  for (int const p : place)
    if (p < 0 || p >= places)
      raise(Errc::bad_configuration, "the placement returned place ", p, "; there are places 0 to ",
            places - 1);
  for (int p = 0; process && p < places; ++p) {
    bool used = false;
    for (int const q : place) used = used || q == p;
    if (!used)
      raise(Errc::bad_configuration, "the placement gives process ", p, " no rank; give each of ",
            places, " processes at least one, or start fewer processes");
  }
  return place;
}

/// Refuses what a worker that pushes gradient groups while backward runs cannot have.
/// @param spans  whether the worker may run in several processes
[[gnu::cold]] inline void require_grouped_pushes(Setup const& setup, bool spans) {
  auto const refuse = [](char const* what) {
    raise(Errc::bad_configuration, what,
          ", so that its layers cannot be pushed in groups while backward still runs; give with() "
          "server.worker(n) without collective::GroupedPushes, or leave that out");
  };
  if (spans) refuse("a worker over processes pushes at the end of a step");
  if (setup.staleness) refuse("a stream pushes after each of its waves");
  if (averages(setup.staleness.pushes)) refuse("the staleness model pushes weights");
  if (setup.staleness.late != nullptr)
    refuse("the staleness model says at the end of a step which layers are late");
  if (setup.options.clip_norm) refuse("clip_norm needs the gradients of all layers");
  if (setup.groups.ops != nullptr) refuse("partition::LayerSplit has ranks share layers");
  bool all_replicated = !setup.options.replicas.empty();
  for (int const count : setup.options.replicas.counts())
    all_replicated = all_replicated && count > 1;
  if (all_replicated)
    refuse("every stage has several replicas, which push their sum at the end of a step");
}

template <class Device>
[[gnu::cold]] std::shared_ptr<Session> make_fitting_session(Device const& device,
                                                            List<Layer> layers, Setup& setup) {
  Options const& options = setup.options;
  int const stages = static_cast<int>(setup.cuts.size()) + 1;
  if (setup.schedule.chunks < 1)
    raise(Errc::bad_configuration, "a schedule with ", counted(setup.schedule.chunks, "stage"),
          " on each rank cannot be run; use one with at least 1");
  if (stages % setup.schedule.chunks != 0)
    raise(Errc::bad_configuration, counted(stages, "stage"), " cannot be spread over ranks with ",
          setup.schedule.chunks, " each; use a multiple of ", setup.schedule.chunks);
  int const positions = stages / setup.schedule.chunks;
  auto const& replicas = options.replicas;
  if (!setup.optimizer.element_wise && (!replicas.empty() || setup.grouping.shard_optimizer))
    raise(Errc::bad_configuration,
          "the optimizer says that it is not element_wise, but each replica updates a part of "
          "every parameter; use one whose elements do not depend on each other, or leave "
          "Options::replicas and shard_optimizer out");
  if (setup.server.pushes_groups) require_grouped_pushes(setup, Device::traits.holds_own_stages);
  if (!replicas.empty()) replicas.ops()->require(replicas, positions, !setup.staleness);
  if constexpr (!Device::traits.sums_while_running || Device::traits.keeps_whole_states)
    if (setup.grouping.shard_optimizer)
      raise(Errc::bad_configuration,
            "this device does not share the optimizer's state out to replicas; leave "
            "AllReduce::shard_optimizer out, or use mpi::Processes");
  if constexpr (Device::traits.shards_states)
    if (setup.grouping.shard_optimizer && replicas.empty())
      raise(Errc::bad_configuration,
            "AllReduce::shard_optimizer shares the optimizer's state out to the replicas of a "
            "stage, and there are none; set Options::replicas, or leave it out");
  if constexpr (!Device::traits.sums_by_library)
    if (setup.grouping.by == collective::By::library)
      raise(Errc::bad_configuration,
            "collective::By::library asks for sums by MPI or NCCL, which this device does not use; "
            "take collective::By::slices, or mpi::Processes or nccl::Gpus for the device");
  if (setup.server.link != nullptr) {
    if constexpr (!Device::traits.outside_signals)
      raise(Errc::bad_configuration,
            "this device cannot push to a parameter server; use host::Threads, mpi::Processes or "
            "sim::VirtualClock for its workers");
    if constexpr (Device::traits.holds_own_stages) {
      if (!setup.server.link->span(device.places()))
        raise(Errc::bad_configuration,
              "a worker over processes cannot reach a parameter server that lies in one of them; "
              "use mpi::ParameterServer, or host::Threads for its device");
    }
    if constexpr (Device::traits.holds_own_stages)
      if (!replicas.empty())
        raise(Errc::bad_configuration,
              "a worker over processes has no replicas; leave Options::replicas out, use "
              "host::Threads for its device, or make more workers");
    if (!replicas.empty() && setup.staleness.late != nullptr)
      raise(Errc::bad_configuration,
            "layers of a worker with replicas cannot be late, since a rank would take up their "
            "values while others compute; leave Options::replicas out, or use "
            "staleness::Synchronous");
    if (options.clip_norm && setup.staleness)
      raise(Errc::bad_configuration,
            "gradients of a stream cannot be clipped by their norm over all stages, since each "
            "stage pushes without waiting for the others; leave clip_norm out, or use a staleness "
            "model that is taken by step");
    if (!setup.optimizer.element_wise)
      raise(Errc::bad_configuration,
            "the optimizer says that it is not element_wise, but the "
            "changes that workers push are made in parts; use one whose elements do not depend on "
            "each other");
  }
  int const ranks = replicas.empty() ? positions : static_cast<int>(replicas.parts().size());
  int const offered = device.places();
  int const places = std::min(offered, ranks);
  if (places < 1)
    raise(Errc::bad_configuration, "the device offers ", counted(offered, "place"),
          " for ranks; use at least 1");
  int spare = 0;
  if constexpr (Device::traits.spare_places)
    if (!replicas.empty()) spare = std::max(0, std::min(device.spare_places(ranks), ranks));
  bool const limited =
      offered != std::numeric_limits<int>::max();  // otherwise as many as there are ranks
  if (setup.uncut && ranks == 1 && layers.size() > 1 && offered > 1 && limited)
    raise(Errc::bad_configuration, "nothing cuts this Sequential of ",
          counted(layers.size(), "layer"), " into stages for the ", counted(offered, "place"),
          " of the device; add a partitioner, such as partition::Even{",
          std::min(static_cast<int>(layers.size()), offered), "}, or use one place");
  if (!(options.deadline_s > 0))
    raise(Errc::bad_configuration, "a deadline of ", options.deadline_s,
          " s would end every step; use a positive time");
  require_clip_norm(options);
  if (options.check_recompute && Device::traits.parameter_memory)
    raise(
        Errc::bad_configuration,
        "Options::check_recompute compares outputs in the memory of the host, but this device has "
        "memory of its own; leave it out, or check the stages on host::Threads");
  if (setup.groups.ops != nullptr && (setup.groups.members != 1 || setup.groups.each_pass)) {
    if constexpr (!Device::traits.shares_layers)
      raise(Errc::bad_configuration, "this device cannot run groups of ", setup.groups.members,
            " ranks that share layers; use host::Threads, mpi::Processes or sim::VirtualClock, or "
            "leave partition::LayerSplit out");
    setup.division = setup.groups.ops->divide(setup, layers);
    if (setup.division->table_stages != 0) setup.grouped = setup.division.get();
  }
  if constexpr (Device::traits.shares_time)
    if (setup.server.link != nullptr)
      setup.server.link = Device::Backend::carry(device, setup.server.link);
  return std::make_shared<SessionOn<Device>>(
      device, std::move(layers), setup, positions,
      checked_places(setup.placement.place(setup.placement.placement, ranks, places), ranks, places,
                     Device::traits.needs_every_place),
      places, spare);
}

template <class Device>
std::shared_ptr<Session> make_session(Device const& device, List<Layer> layers, Setup& setup) {
  if constexpr (BackendFacts<Device>::fault == BackendFault::none) {
    return make_fitting_session(device, std::move(layers), setup);
  } else {
    static_cast<void>(NotABackend<Device>{});  // the static_assert says what is wrong
    return nullptr;
  }
}

}  // namespace stagger::detail
