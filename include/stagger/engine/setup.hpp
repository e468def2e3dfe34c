// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The policies of a pipeline with their types erased, from which the engine is made.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <stagger/core/basic_algorithm.hpp>
#include <stagger/core/combinations.hpp>
#include <stagger/core/error.hpp>
#include <stagger/core/policy_numbers.hpp>
#include <stagger/core/shape.hpp>
#include <stagger/engine/detail/gradient_group_part.hpp>
#include <stagger/engine/detail/grouped.hpp>
#include <stagger/engine/detail/step_part.hpp>
#include <stagger/engine/options.hpp>
#include <stagger/parameters/layer_parameters.hpp>
#include <stagger/parameters/optimizer_call.hpp>
#include <stagger/parameters/parameter_link.hpp>
#include <stagger/program/exchange_versions.hpp>
#include <stagger/program/versions.hpp>
#include <stagger/schedule/table.hpp>
#include <stagger/schedule/table_of.hpp>
#include <stagger/staleness/policy.hpp>

namespace stagger::detail {

/// Refuses an optimizer that processes cannot compare.
/// @throws Error bad_configuration  if the digest is 0: the optimizer's numbers are unknown
inline void require_numbers(std::uint64_t optimizer) {
  if (optimizer != 0) return;
  raise(Errc::bad_configuration,
        "processes cannot compare the numbers of this optimizer, whose members are of several "
        "types; give it 'auto fields() const { return std::tie(rate, warm_up); }' with all of "
        "them");
}

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

/// The pipeline's parameter server, and how it is used; none: the pipeline trains alone.
struct ServerChoice {
  std::shared_ptr<ParameterLink> link{};
  bool pushes_groups = false;  // each gradient group while the last backward still runs
};

/// Tag of the engine's parts for parameter servers, which only programs with one compile:
/// <stagger/engine/run_together.hpp> has the definition for this tag.
struct WithServer {};
template <class Tag> struct ExchangeTable {
  static_assert(!std::is_same_v<Tag, WithServer>,
                "stagger: workers of a parameter server need one more header: include "
                "<stagger/engine/run_together.hpp>");
  template <class, bool> static void extend(std::vector<std::shared_ptr<PolicyPart const>>&) {}
};

/// Tag of the engine's part for groups, likewise: <stagger/engine/groups.hpp> has the
/// definition for this tag.
struct WithGroups {};
template <class Tag> struct GroupTable {
  static_assert(!std::is_same_v<Tag, WithGroups>,
                "stagger: layers that groups of ranks share need one more header: include "
                "<stagger/engine/groups.hpp>");
  static void extend(std::vector<std::shared_ptr<PolicyPart const>>&) {}
};

/// @tparam P  partition::LayerSplit
template <class P> [[nodiscard]] GroupChoice group_choice(P const& policy) {
  auto const rules = policy.rules();
  return {rules.group, rules.threshold, rules.pairs,
          policy.update == decltype(policy.update)::each_pass};
}

/// A pipeline's policies except the device, types erased.
struct Setup {
  std::vector<int> const& cuts;  // [stages - 1] first layer of each stage after the first, rising
  Options const& options;
  ScheduleCall schedule{};
  StalenessModel staleness{};
  PlacementCall placement{};
  OptimizerCall optimizer{};
  GroupingChoice grouping{};
  ServerChoice server{};
  GroupChoice groups{};
  /// What policies add, in the order of their parts in a machine.
  std::vector<std::shared_ptr<PolicyPart const>> parts{};
  Features features{};                        // of these and the device; made by make_session
  std::shared_ptr<Grouped const> division{};  // among groups; null: none was asked for
  Grouped const* grouped = nullptr;           // the same if any layer is shared
  bool uncut = false;                         // a Sequential without a partitioner
  bool target_rows = true;                    // there are no targets, or they can be split by rows
  std::shared_ptr<void const> kept{};         // keeps what the members point into
  [[gnu::cold]] [[gnu::noinline]] ~Setup() = default;
};

/// The policies that live as long as the session.
template <class Schedule, class Staleness, class Optimizer, class Loss> struct Kept {
  Schedule schedule;
  Staleness staleness;
  Optimizer optimizer;
  Loss loss;
  Optimizer given = optimizer;  // as it was before its numbers changed
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

/// Refuses a schedule chosen at run time that never flushes, if the staleness model is synchronous.
template <class P> [[gnu::cold]] void require_flush(P const& policy, bool synchronous) {
  auto const facts = policy.facts();
  require_rule(
      Rule::flush_missing,
      Features{}.with(feature::synchronous, synchronous).with(feature::no_flush, !facts.flushes),
      text("schedule ", facts.name));
}

/// @tparam server  whether there is a parameter server
template <bool server, class P>
[[nodiscard]] [[gnu::cold]] StalenessModel staleness_model(P const& policy) {
  StalenessModel model;
  model.policy = &policy;
  if constexpr (requires { policy.check(); }) policy.check();
  if constexpr (ExchangingPolicy<P>) {
    if (policy.minibatches() < 1)
      raise(Errc::bad_configuration, "a push of ", policy.minibatches(),
            " minibatches cannot be made; let minibatches() of the staleness model be at least 1");
    model.push_minibatches = policy.minibatches();
    model.pushes = policy.pushes;
    if constexpr (requires { policy.average_state; })
      if (model.pushes == staleness::Pushes::weights && policy.average_state)
        model.pushes = staleness::Pushes::weights_and_state;
    model.adds = policy.adds;
    model.needs = [](void const* erased, int minibatch) {
      return static_cast<P const*>(erased)->needs(minibatch);
    };
    model.late = late_calls_of<P>;
    if constexpr (sends_late<P>) model.immediate = policy.immediate;
  } else if constexpr (server) {  // bulk synchronous: weights contain all earlier pushes
    model.push_minibatches = 1;
    model.needs = [](void const*, int minibatch) { return minibatch; };
  }
  if constexpr (AsynchronousPolicy<P>) {
    model.microbatches = policy.microbatches();
    if (model.microbatches < 1)
      raise(Errc::bad_configuration, "a minibatch cannot have ",
            counted(model.microbatches, "microbatch"),
            "; let microbatches() of the staleness model be at least 1");
    model.version = [](void const* erased, int minibatch, int available) {
      return static_cast<P const*>(erased)->version(minibatch, available);
    };
    model.fix = &fix_versions;
    if constexpr (ExchangingPolicy<P>) model.fix = &fix_exchanged_versions;
  }
  if constexpr (server || ExchangingPolicy<P> || AsynchronousPolicy<P>)
    model.passes = version_passes<StalenessModel>();
  return model;
}

template <class P> [[nodiscard]] PlacementCall placement_call(P const& policy) {
  return {&policy, [](void const* erased, int ranks, int places) {
            return static_cast<P const*>(erased)->place(ranks, places);
          }};
}

/// @tparam changes  whether changes are pushed to a parameter server
/// @tparam words    whether a server may compare the optimizer's numbers
template <bool changes, class P, bool words = true>
[[nodiscard]] [[gnu::cold]] OptimizerCall optimizer_call(P const& policy) {
  OptimizerCall call;
  call.optimizer = &policy;
  call.update = [](void const* erased, LayerParameters& parameters,
                   UpdateStep const& step) noexcept {
    parameters.update(*static_cast<P const*>(erased), step);
  };
  if constexpr (changes)
    call.change = [](void const* erased, LayerParameters& parameters,
                     UpdateStep const& step) noexcept {
      parameters.change(*static_cast<P const*>(erased), step);
    };
  if constexpr (requires { policy.check(); }) {
    policy.check();
    call.check = [](void const* erased) { static_cast<P const*>(erased)->check(); };
  }
  call.digest = [](void const* erased) noexcept {
    return policy_digest(*static_cast<P const*>(erased));
  };
  if constexpr (words)
    call.words = [](void const* erased) { return policy_words(*static_cast<P const*>(erased)); };
  call.states = P::states;
  call.element_wise = P::element_wise;
  if constexpr (updates_by_kernel<P>) call.enqueued_bytes = sizeof(P);
  if constexpr (requires { P::asks_scale; }) call.asks_scale = P::asks_scale;
  if constexpr (changes && requires { P::makes_changes; }) call.makes_changes = P::makes_changes;
  if constexpr (words && OptimizerPolicy<HostRuleOf<P>>)
    call.on_host = [](void const* erased) {
      using Host = HostRuleOf<P>;
      return optimizer_call<false, Host>(static_cast<Host const&>(*static_cast<P const*>(erased)));
    };
  return call;
}

}  // namespace stagger::detail
