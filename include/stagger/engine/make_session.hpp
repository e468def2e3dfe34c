// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The checks that a pipeline and a device fit together, before the machine is made.

#include <stagger/core/requirements.hpp>

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include <stagger/core/basic_algorithm.hpp>
#include <stagger/core/combinations.hpp>
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

/// The features of a pipeline, without those of its device.
[[nodiscard]] [[gnu::cold]] inline Features policy_features(Setup const& setup) {
  Options const& options = setup.options;
  StalenessModel const& staleness = setup.staleness;
  bool all_replicated = !options.replicas.empty();
  for (int const count : options.replicas.counts()) all_replicated = all_replicated && count > 1;
  return Features{}
      .with(feature::asynchronous, static_cast<bool>(staleness))
      .with(feature::workers_model, staleness.exchanges())
      .with(feature::averages, averages(staleness.pushes))
      .with(feature::late, staleness.late != nullptr)
      .with(feature::pushes_no_changes, staleness.pushes != staleness::Pushes::changes)
      .with(feature::adds_in_turn, staleness.adds == staleness::Adds::in_turn)
      .with(feature::layer_split, setup.groups.members != 1 || setup.groups.each_pass)
      .with(feature::replicas, !options.replicas.empty())
      .with(feature::all_replicated, all_replicated)
      .with(feature::shards, setup.grouping.shard_optimizer)
      .with(feature::by_library, setup.grouping.by == collective::By::library)
      .with(feature::server, setup.server.link != nullptr)
      .with(feature::grouped_pushes, setup.server.pushes_groups)
      .with(feature::whole_parameters, !setup.optimizer.element_wise)
      .with(feature::suits_server, staleness.pushes == staleness::Pushes::changes
                                       ? setup.optimizer.makes_changes
                                       : setup.optimizer.has_host_rule())
      .with(feature::clips, options.clip_norm.has_value())
      .with(feature::skips, options.non_finite == NonFinite::skip)
      .with(feature::recomputes, options.recompute)
      .with(feature::checks_recompute, options.check_recompute)
      .with(feature::records, options.record);
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
  setup.features = policy_features(setup) | device_features(Device::traits);
  for (auto const& part : setup.parts) setup.features = setup.features | part->features();
  setup.features = setup.features.with(feature::own_weights, keep_weights(layers));
  if constexpr (Device::traits.holds_own_stages)
    if (setup.server.link != nullptr)
      setup.features =
          setup.features.with(feature::reaches_processes, setup.server.link->span(device.places()));
  require_combination(setup.features);
  if (!replicas.empty()) setup.parts.insert(setup.parts.begin(), replicas.part());
  for (auto const& part : setup.parts) part->require(setup, positions);
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
  require_deadline("Options::deadline_s", options.deadline_s);
  require_clip_norm(options);
  for (auto const& part : setup.parts) part->divide(setup, layers);
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
