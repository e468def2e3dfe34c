// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The policies of a pipeline with their types erased, one by one: what an engine is made
/// from, whichever they are.

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <stagger/core/error.hpp>
#include <stagger/core/shape.hpp>
#include <stagger/engine/detail/optimizer_call.hpp>
#include <stagger/engine/optimizer_numbers.hpp>
#include <stagger/engine/options.hpp>
#include <stagger/engine/parameters.hpp>
#include <stagger/engine/replica_ops.hpp>
#include <stagger/program/versions.hpp>
#include <stagger/schedule/table.hpp>
#include <stagger/schedule/table_of.hpp>
#include <stagger/staleness/policy.hpp>

namespace stagger::detail {

/// A schedule policy, its type erased.
struct ScheduleCall {
  void const* schedule = nullptr;
  schedule::Table (*table)(void const* schedule, Shape) = nullptr;  // a legal one
  int chunks = 1;
  int slices = 1;  // of each microbatch
};

/// A placement policy, its type erased.
struct PlacementCall {
  void const* placement = nullptr;
  std::vector<int> (*place)(void const* placement, int ranks, int places) = nullptr;
};

/// A pipeline's policies but the device, types erased.
struct Setup {
  std::vector<int> const& cuts;  // [stages - 1] first layer of each stage after the first, rising
  Options const& options;
  ScheduleCall schedule{};
  StalenessModel staleness{};
  PlacementCall placement{};
  OptimizerCall optimizer{};
  GroupingChoice grouping{};
  bool uncut = false;                  // a Sequential, for which there is no partitioner
  bool target_rows = true;             // targets can be cut by rows, or there are none
  std::shared_ptr<void const> kept{};  // what these point into
};

/// The policies that a session needs for as long as it lives.
template <class Schedule, class Staleness, class Collective, class Optimizer, class Loss>
struct Kept {
  Schedule schedule;
  Staleness staleness;
  Collective collective;
  Optimizer optimizer;
  Loss loss;
};

template <class P> [[nodiscard]] [[gnu::cold]] ScheduleCall schedule_call(P const& policy) {
  ScheduleCall call;
  call.schedule = &policy;
  call.table = [](void const* erased, Shape shape) {
    auto table = schedule::table_of(*static_cast<P const*>(erased), shape);
    if constexpr (!schedule::is_proven<P>) schedule::detail::require_legal(table);
    return table;
  };
  call.chunks = policy.chunks();
  if constexpr (requires { policy.facts(); })
    call.slices = policy.facts().slices;
  else if constexpr (requires { policy.slices; })
    call.slices = std::max(1, policy.slices);
  return call;
}

/// Refuses a schedule chosen while the program runs that never flushes, where the staleness model
/// needs one that does.
template <class P> [[gnu::cold]] void require_flush(P const& policy, bool synchronous) {
  auto const facts = policy.facts();
  if (synchronous && !facts.flushes)
    raise(Errc::bad_configuration, "schedule ", std::string(facts.name),
          " never flushes, so weights change under running microbatches, but the staleness model "
          "promises that they do not; use a schedule that flushes, such as 1f1b, or a staleness "
          "model that keeps weight versions");
}

template <class P> [[nodiscard]] [[gnu::cold]] StalenessModel staleness_model(P const& policy) {
  StalenessModel model;
  if constexpr (AsynchronousPolicy<P>) {
    model.microbatches = policy.microbatches();
    model.policy = &policy;
    model.version = [](void const* erased, int minibatch, int available) {
      return static_cast<P const*>(erased)->version(minibatch, available);
    };
    model.fix = &fix_versions;
  }
  return model;
}

template <class P> [[nodiscard]] PlacementCall placement_call(P const& policy) {
  return {&policy, [](void const* erased, int ranks, int places) {
            return static_cast<P const*>(erased)->place(ranks, places);
          }};
}

template <class P> [[nodiscard]] [[gnu::cold]] OptimizerCall optimizer_call(P const& policy) {
  OptimizerCall call;
  call.optimizer = &policy;
  call.update = [](void const* erased, LayerParameters& parameters,
                   UpdateStep const& step) noexcept {
    parameters.update(*static_cast<P const*>(erased), step);
  };
  call.digest = [](void const* erased) noexcept {
    return optimizer_digest(*static_cast<P const*>(erased));
  };
  call.states = P::states;
  if constexpr (requires { P::element_wise; }) call.element_wise = P::element_wise;
  if constexpr (requires { P::enqueues; }) call.enqueued_bytes = sizeof(P);
  return call;
}

}  // namespace stagger::detail
