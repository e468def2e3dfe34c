// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The compile-time check of a pipeline's layers and policies, with a single error message.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include <stagger/core/stop_token.hpp>
#include <stagger/engine/memory.hpp>
#include <stagger/model/parameter.hpp>
#include <stagger/program/traffic.hpp>
#include <stagger/schedule/timeline.hpp>
#include <stagger/train/detail/not_a_policy.hpp>
#include <stagger/train/detail/not_a_stage.hpp>
#include <stagger/train/detail/policies.hpp>

namespace stagger::host {
struct Threads;  // the default device, which pipeline.hpp includes
}

namespace stagger::detail {

// A check is a class whose static_assert fails, or void if nothing is wrong. Only the first one is
// instantiated, so that there is only one error message.

/// The first of several checks that is not void.
template <class... Check> struct First {
  using type = void;
};
template <class Check, class... Rest> struct First<Check, Rest...> {
  using type = Check;
};
template <class... Rest> struct First<void, Rest...> : First<Rest...> {};

template <bool holds, class Check> using Unless = std::conditional_t<holds, void, Check>;

template <class L> using LayerOf = typename LayerTraits<L>::Layer;

/// A run of equal layers, each the input of the next.
template <class L>
inline constexpr bool run_fits =
    !LayerTraits<L>::repeated ||
    (std::same_as<typename LayerOf<L>::Input, typename LayerOf<L>::Output> &&
     HasInputGradient<LayerOf<L>>);

template <class A, class B>
using CheckNeighbours =
    First<Unless<std::same_as<typename A::Output, typename B::Input>, NeighboursDoNotFit<A, B>>,
          Unless<HasInputGradient<B>, NoInputGradient<B>>>;

template <class Types> struct CheckChain {
  using type = void;
};
template <class A, class B, class... Rest>
struct CheckChain<Layers<A, B, Rest...>>
    : First<typename CheckNeighbours<LayerOf<A>, LayerOf<B>>::type,
            typename CheckChain<Layers<B, Rest...>>::type> {};

template <class... L> consteval auto check_model(Layers<L...>) {
  using Stages = First<Unless<Stage<LayerOf<L>>, NotAStage<LayerOf<L>>>...>;
  if constexpr (!std::is_void_v<typename Stages::type>)
    return Stages{};
  else
    return First<Unless<run_fits<L>, RunDoesNotFit<LayerOf<L>>>...,
                 typename CheckChain<Layers<L...>>::type>{};
}

/// The check of a policy of type P for the axis that its tag names.
template <class P, class Tag> struct CheckPolicy {
  using type = NotAPolicy<P>;
};
template <class P> struct CheckPolicy<P, OptionsTag> {
  using type = void;
};
template <class P> struct CheckPolicy<P, PartTag> : First<Unless<HasPart<P>, NotAPart<P>>> {};
template <class P>
struct CheckPolicy<P, ScheduleTag>
    : First<Unless<SchedulePolicy<P>, NotASchedule<P>>,
            Unless<ScheduleOptions<P>::fit, WrongScheduleOption<P>>> {};
/// The check that a policy of several parts makes of them.
template <class P> struct FaultOf {
  using type = void;
};
template <class P>
  requires requires { typename P::Fault; }
struct FaultOf<P> {
  using type = typename P::Fault;
};
template <class P> struct CheckPolicy<P, StalenessTag> {
  static consteval bool holds() {
    if constexpr (StalenessPolicy<P>)
      return P::synchronous || AsynchronousPolicy<P>;
    else
      return false;
  }
  using type =
      typename First<Unless<holds(), NotAStalenessModel<P>>, typename FaultOf<P>::type,
                     Unless<!has_worker_member<P> || ExchangingPolicy<P>, NotAWorkersModel<P>>,
                     Unless<averages_state<P>, WrongAverageState<P>>>::type;
};
template <class P>
struct CheckPolicy<P, PartitionTag> : First<Unless<PartitionPolicy<P>, NotAPartitioner<P>>> {};
template <class P>
struct CheckPolicy<P, CollectiveTag> : First<Unless<CollectivePolicy<P>, NotACollective<P>>> {};
template <class P>
struct CheckPolicy<P, PlacementTag> : First<Unless<PlacementPolicy<P>, NotAPlacement<P>>> {};
template <class P>
struct CheckPolicy<P, DeviceTag> : First<Unless<DevicePolicy<P>, NotADevice<P>>> {};
template <class P>
struct CheckPolicy<P, OptimizerTag>
    : First<Unless<OptimizerPolicy<P>, NotAnOptimizer<P>>,
            Unless<OptimizerOptions<P>::fit, WrongOptimizerOption<P>>> {};
template <class P> struct CheckPolicy<P, LossTag> : First<Unless<LossPolicy<P>, NotALoss<P>>> {};

template <class P> struct TagIn {
  using type = void;
};
template <HasTag P> struct TagIn<P> {
  using type = typename P::policy_tag;
};

template <class Tag, class... P>
using CheckOnce = Unless<(count_of<Tag, P...> <= 1), TwoPolicies<Tag>>;

template <class... P> consteval auto check_policies() {
  return First<
      typename CheckPolicy<P, typename TagIn<P>::type>::type..., CheckOnce<ScheduleTag, P...>,
      CheckOnce<StalenessTag, P...>, CheckOnce<PartitionTag, P...>, CheckOnce<CollectiveTag, P...>,
      CheckOnce<PlacementTag, P...>, CheckOnce<DeviceTag, P...>, CheckOnce<OptimizerTag, P...>,
      CheckOnce<LossTag, P...>, CheckOnce<OptionsTag, P...>>{};
}

/// The features of a pipeline as far as the types of its policies say them.
template <class... P> consteval Features type_features() {
  using Schedule = typename Pick<ScheduleTag, schedule::OneFOneB, P...>::type;
  using Staleness = typename Pick<StalenessTag, staleness::Synchronous, P...>::type;
  using Collective = typename Pick<CollectiveTag, DefaultCollective, P...>::type;
  using Device = typename Pick<DeviceTag, host::Threads, P...>::type;
  return Features{}
      .with(feature::no_flush, !Schedule::flushes)
      .with(feature::synchronous, Staleness::synchronous)
      .with(feature::asynchronous, !Staleness::synchronous)
      .with(feature::workers_model, ExchangingPolicy<Staleness>)
      .with(feature::server, ServerPolicy<Collective>)
      .with(feature::placement, count_of<PlacementTag, P...> != 0)
      .with(feature::obeys_placement, Device::traits.obeys_placement);
}

template <class Types, Rule rule, class Loss> consteval auto check_fit() {
  using Y = typename Ends<Types>::Output;
  return First<Unless<rule == Rule::none, NotCombined<rule>>,
               Unless<std::same_as<Loss, NoLoss> || LossFor<Loss, Y>, LossDoesNotFit<Loss, Y>>>{};
}

template <class Types, class... P> consteval auto check_pipeline() {
  using Model = decltype(check_model(Types{}));
  using Policies = decltype(check_policies<P...>());
  if constexpr (!std::is_void_v<typename Model::type>)
    return Model{};
  else if constexpr (!std::is_void_v<typename Policies::type>)
    return Policies{};
  else
    return check_fit<Types, refusing_types(type_features<P...>()),
                     typename Pick<LossTag, NoLoss, P...>::type>();
}

/// What is wrong with a pipeline of these stages and policies: a class whose static_assert says it,
/// or void.
template <class Types, class... P>
using Wrong = typename decltype(check_pipeline<Types, P...>())::type;

/// Accepts any argument, since a program may call functions of the trainer that it did not get.
struct Anything {
  template <class... T> Anything(T const&...);  // NOLINT
};

/// What `with` returns after an error: it accepts every call, so that no second error follows the
/// first.
/// @tparam Result  of a step
template <class Result> struct Rejected {
  template <class T> operator T() const;  // NOLINT
  Result step(Anything, stagger::stop_token = {}) const;
  Result stream(Anything, stagger::stop_token = {}) const;
  Result evaluate(Anything, stagger::stop_token = {}) const;
  Result predict(Anything, Anything, stagger::stop_token = {}) const;
  std::vector<ParameterState> parameters() const;
  std::vector<ParameterState> own_parameters() const;
  Rejected& optimizer() const;
  void prepare(std::size_t) const;
  void record(bool) const;
  void resume(std::int64_t) const;
  void restore_parameters(Anything) const;
  void settle() const;
  int stages() const;
  int ranks() const;
  std::int64_t steps() const;
  Memory memory() const;
  schedule::Timeline timeline() const;
  schedule::Timeline reductions() const;
  std::vector<int> peak_in_flight() const;
  std::string failed_at() const;
  Traffic traffic() const;
  std::vector<std::uint64_t> staleness(std::optional<int> = {}) const;
};

}  // namespace stagger::detail
