// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Pipeline, the class that users construct.

#include <cstddef>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <stagger/core/basic_algorithm.hpp>
#include <stagger/core/list.hpp>
#include <stagger/engine/append_layers.hpp>
#include <stagger/engine/options.hpp>
#include <stagger/engine/setup.hpp>
#include <stagger/host/threads.hpp>
#include <stagger/model/loss.hpp>
#include <stagger/model/optimizer.hpp>
#include <stagger/model/sequential.hpp>
#include <stagger/partition/cuts.hpp>
#include <stagger/placement/in_order.hpp>
#include <stagger/schedule/one_f_one_b.hpp>
#include <stagger/staleness/synchronous.hpp>
#include <stagger/train/detail/names.hpp>
#include <stagger/train/detail/refusal.hpp>  // early, which keeps what a compiler says short
#include <stagger/train/one_device.hpp>
#include <stagger/train/trainer.hpp>
#ifndef STAGGER_SEPARATE_COMPILATION
#include <stagger/engine/make_session.hpp>
#endif

namespace stagger {

namespace detail {

template <class L> inline constexpr bool is_sequential = false;
template <class... L> inline constexpr bool is_sequential<Sequential<L...>> = true;

[[gnu::cold]] inline void require_layers(List<Layer> const& layers) {
  if (layers.empty())
    raise(Errc::bad_configuration, "a pipeline of 0 stages cannot be run; give at least 1 layer");
}

/// The device, told the types of the layers if it asks for them, and those of batches if it compares
/// these. `make_session` refuses one that asks for layers and cannot be told.
template <class Layers, class Target, class Device> [[nodiscard]] Device with_types(Device device) {
  if constexpr (requires { device.template use_batches<typename Ends<Layers>::Input, Target>(); })
    device.template use_batches<typename Ends<Layers>::Input, Target>();
  if constexpr (Device::traits.takes_layer_types &&
                requires { device.template use_layers<Layers>(); })
    device.template use_layers<Layers>();
  return device;
}

template <class P> [[gnu::cold]] void add_part(Setup& setup, P const& policy) {
  if constexpr (fills<P, PartTag>) setup.parts.push_back(policy.part());
}

/// Adds the cut in front of the layers [first, last), or in front of each of them.
[[gnu::cold]] [[gnu::noinline]] inline void add_cuts(std::vector<int>& cuts, std::size_t first,
                                                     std::size_t last, bool each) {
  for (std::size_t l = first; l < last; l = each ? l + 1 : last)
    if (l != 0) cuts.push_back(static_cast<int>(l));
}

}  // namespace detail

/// A model for a pipeline: stages cut by hand, each an argument, or one Sequential that a
/// partitioner cuts.
///
/// @code
///     auto train = Pipeline{Embed{}, Block{}, Head{}}.with(schedule::GPipe{}, host::Threads{2});
///
///     auto train = Pipeline{Sequential{Embed{}, std::vector<Block>(12), Head{}}}
///                      .with(partition::Even{4}, loss::CrossEntropy<>{});
/// @endcode
///
/// Among several arguments, a Sequential is one stage of several layers and a `std::vector<Stage>`
/// as many stages. Without a partitioner a Sequential is one stage, for devices with one place.
template <class... Stage> class Pipeline {
  static_assert(sizeof...(Stage) > 0, "stagger: a Pipeline needs at least one stage");

 public:
  explicit Pipeline(Stage... stages) : stages_(std::move(stages)...) {}

  /// Adds policies, in any order, at most one for each axis. What is left out takes its default:
  /// schedule::OneFOneB, staleness::Synchronous, cuts as given, collective::AllReduce,
  /// placement::InOrder, host::Threads{1}, optimizer::Sgd, no loss, Options{}.
  /// @throws Error  bad_configuration for numbers that do not fit together; names them and numbers
  ///                that would
  template <class... P>
    requires detail::Included<P...>
  [[nodiscard]] auto with(P... policy) const& {
    if constexpr (std::is_void_v<Wrong<P...>>) {
      return Pipeline(*this).with(std::move(policy)...);
    } else {
      static_cast<void>(Wrong<P...>{});  // its static_assert says what is wrong
      return detail::Rejected<Step>{};
    }
  }

  /// The same, but moves the stages instead of copying them.
  template <class... P>
    requires detail::Included<P...>
  [[nodiscard]] [[gnu::cold]] auto with(P... policy) && {
    using namespace detail;
    constexpr bool cut_later = sizeof...(Stage) == 1 && (is_sequential<Stage> && ...);
    if constexpr (!std::is_void_v<Wrong<P...>>) {
      static_cast<void>(Wrong<P...>{});  // its static_assert says what is wrong
      return detail::Rejected<Step>{};
    } else {
      constexpr bool has_partitioner = count_of<PartitionTag, P...> != 0;
      static_cast<void>(
          NotCombined<refusing_types(Features{}
                                         .with(feature::hand_cut, !cut_later)
                                         .with(feature::partitioner, has_partitioner))>{});
      std::vector<int> cuts;
      List<Layer> layers;
      auto const append = [&]<class S>(S& stage) {
        std::size_t const first = layers.size();
        append_layers(layers, std::move(stage));
        detail::add_cuts(cuts, first, layers.size(), detail::LayerTraits<S>::repeated);
      };
      std::apply([&](auto&... stage) { (append(stage), ...); }, stages_);
      detail::require_layers(layers);
      auto const partitioner = Pick<PartitionTag, partition::Cuts, P...>::from(policy...);
      if constexpr (cut_later)
        cuts = partition::Cuts{partitioner.cuts(static_cast<int>(layers.size()))}.cuts(
            static_cast<int>(layers.size()));  // check the cuts of any partitioner
      using Model = Ends<Types>;
      using Device = typename Pick<DeviceTag, host::Threads, P...>::type;
      using Schedule = typename Pick<ScheduleTag, schedule::OneFOneB, P...>::type;
      using Collective = typename Pick<CollectiveTag, DefaultCollective, P...>::type;
      using Optimizer = typename Pick<OptimizerTag, optimizer::Sgd, P...>::type;
      using Staleness = typename Pick<StalenessTag, staleness::Synchronous, P...>::type;
      using Loss = typename Pick<LossTag, NoLoss, P...>::type;
      static_cast<void>(
          NotCombined<refusing_types(device_features(Device::traits)
                                         .with(feature::kernel, updates_by_kernel<Optimizer>))>{});
      auto const options = Pick<OptionsTag, Options, P...>::from(policy...);
      auto const placement = Pick<PlacementTag, placement::InOrder, P...>::from(policy...);
      using Policies = Kept<Schedule, Staleness, Optimizer, Loss>;
      auto const kept =
          std::make_shared<Policies>(Policies{Pick<ScheduleTag, Schedule, P...>::from(policy...),
                                              Pick<StalenessTag, Staleness, P...>::from(policy...),
                                              Pick<OptimizerTag, Optimizer, P...>::from(policy...),
                                              Pick<LossTag, Loss, P...>::from(policy...)});
      if constexpr (FollowingPolicy<Staleness> && !Schedule::flushes &&
                    requires { kept->schedule.in_flight; })
        kept->staleness.follow(kept->schedule.in_flight != 0 ? kept->schedule.in_flight
                                                             : static_cast<int>(cuts.size()) + 1);
      Setup setup{.cuts = cuts, .options = options};
      if constexpr (requires { partitioner.rules().group; }) {
        using Tag = std::conditional_t<sizeof(partitioner) != 0, WithGroups, void>;
        setup.groups = group_choice(partitioner);
        GroupTable<Tag>::extend(setup.parts);
      }
      if constexpr (requires { kept->schedule.facts(); })
        require_flush(kept->schedule, Staleness::synchronous);
      setup.schedule = schedule_call(kept->schedule);
      setup.staleness = staleness_model<ServerPolicy<Collective>>(kept->staleness);
      setup.placement = placement_call(placement);
      setup.optimizer =
          optimizer_call<ExchangingPolicy<Staleness>, Optimizer, ServerPolicy<Collective>>(
              kept->optimizer);
      auto const collective = Pick<CollectiveTag, Collective, P...>::from(policy...);
      if constexpr (SumPolicy<Collective> && !std::same_as<Collective, DefaultCollective>)
        setup.grouping = grouping_of(collective);
      if constexpr (count_of<PartTag, P...> != 0) (add_part(setup, policy), ...);
      if constexpr (ServerPolicy<Collective>) {
        using Tag = std::conditional_t<sizeof(Collective) != 0, WithServer, void>;
        setup.server = {collective.link(), SumPolicy<Collective>};
        ExchangeTable<Tag>::template extend<Staleness, SumPolicy<Collective>>(setup.parts);
      }
      setup.target_rows = std::same_as<Loss, NoLoss> || Rows<typename Loss::Target>::exist;
      setup.uncut = cut_later && !has_partitioner;
      setup.kept = kept;
      auto session = make_session(with_types<Types, typename Loss::Target>(
                                      Pick<DeviceTag, host::Threads, P...>::from(policy...)),
                                  std::move(layers), setup);
      return Trainer<typename Model::Input, typename Model::Output, Optimizer, Loss,
                     Staleness::synchronous,
                     std::conditional_t<refuses(Rule::captured_host,
                                                feature::capture | device_features(Device::traits)),
                                        void, Device>>(std::move(session), kept->optimizer,
                                                       kept->given, kept->loss);
    }
  }

  /// Overloads for a policy without its header, which the compiler names before it comes here, and
  /// for Options in braces alone.
  template <class... P>
    requires(!detail::Included<P...>)
  detail::Rejected<Step> with(P const&...) const;
#define STAGGER_NOT_IN_BRACES                                                                \
  __attribute__((unavailable(                                                                \
      "stagger: braces alone do not say what they are: write Options{.seed = 1} instead of " \
      "{.seed = 1}"))) detail::Rejected<Step>
  STAGGER_NOT_IN_BRACES with(detail::Anything, Options) const;
  STAGGER_NOT_IN_BRACES with(detail::Anything, detail::Anything, Options) const;
  STAGGER_NOT_IN_BRACES with(detail::Anything, detail::Anything, detail::Anything, Options) const;
#undef STAGGER_NOT_IN_BRACES

  /// The same model without a pipeline, to compare with: a plain loop on the calling thread.
  /// @param policy  a loss and, if wanted, an optimizer and the pipeline's Options, of which the
  ///                loop obeys clip_norm, seed and non_finite; it repeats and records nothing
  template <class... P> [[nodiscard]] auto on_one_device(P... policy) const& {
    if constexpr (std::is_void_v<Wrong<P...>>) {
      return Pipeline(*this).on_one_device(std::move(policy)...);
    } else {
      static_cast<void>(Wrong<P...>{});
      return detail::Rejected<Metrics>{};
    }
  }
  template <class... P> [[nodiscard]] auto on_one_device(P... policy) && {
    using namespace detail;
    if constexpr (!std::is_void_v<Wrong<P...>>) {
      static_cast<void>(Wrong<P...>{});
      return detail::Rejected<Metrics>{};
    } else {
      static_assert(count_of<LossTag, P...> == 1,
                    "stagger: training on one device needs a loss, such as "
                    "loss::MeanSquaredError<>{}");
      static_assert(sizeof...(P) == (count_of<LossTag, P...> + count_of<OptimizerTag, P...> +
                                     count_of<OptionsTag, P...>),
                    "stagger: one device takes a loss, an optimizer and Options; the other "
                    "policies are the pipeline's");
      using Optimizer = typename Pick<OptimizerTag, optimizer::Sgd, P...>::type;
      static_cast<void>(NotCombined<refusing_types(feature::one_device.with(
                            feature::kernel, updates_by_kernel<Optimizer>))>{});
      List<Layer> layers;
      std::apply([&](auto&... stage) { (append_layers(layers, std::move(stage)), ...); }, stages_);
      detail::require_layers(layers);
      using Model = Ends<Types>;
      return OneDevice<typename Model::Input, typename Model::Output, Optimizer,
                       typename Pick<LossTag, NoLoss, P...>::type>(
          std::move(layers), Pick<OptimizerTag, optimizer::Sgd, P...>::from(policy...),
          Pick<LossTag, NoLoss, P...>::from(policy...),
          Pick<OptionsTag, Options, P...>::from(policy...));
    }
  }

 private:
  using Types = typename detail::Flatten<detail::Layers<>, Stage...>::type;
  template <class... P> using Wrong = detail::Wrong<Types, P...>;

  std::tuple<Stage...> stages_;
};

}  // namespace stagger
