// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Policies in any order: which argument fills which slot, and what does not go together.

#include <concepts>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <stagger/collective/policy.hpp>
#include <stagger/engine/device.hpp>
#include <stagger/engine/options.hpp>
#include <stagger/model/loss.hpp>
#include <stagger/model/optimizer.hpp>
#include <stagger/model/sequential.hpp>
#include <stagger/partition/cuts.hpp>
#include <stagger/placement/in_order.hpp>
#include <stagger/schedule/one_f_one_b.hpp>
#include <stagger/schedule/policy.hpp>
#include <stagger/staleness/synchronous.hpp>

namespace stagger::host {
struct Threads;  // the default device; defined by its back end, which stands above the engine
}

namespace stagger::detail {

/// Fills the loss slot of a pipeline that is only ever asked for outputs.
struct NoLoss {
  using policy_tag = LossTag;
  struct Target {};
};

/// Fills the collective slot where none is given: ranks share the memory of one process.
struct NoCollective {};

template <class P>
concept HasTag = requires {
  typename P::policy_tag;
};

template <class P, class Tag> inline constexpr bool fills = false;
template <HasTag P, class Tag>
inline constexpr bool fills<P, Tag> = std::same_as<typename P::policy_tag, Tag>;

template <class Tag, class... P>
inline constexpr int count_of = (0 + ... + (fills<P, Tag> ? 1 : 0));

/// The first argument with a tag, or a default.
template <class Tag, class Default, class... P> struct Pick {
  using type = Default;
  static type from(P&...) { return type{}; }
};
template <class Tag, class Default, class First, class... Rest>
struct Pick<Tag, Default, First, Rest...> {
  static constexpr bool here = fills<First, Tag>;
  using Later = Pick<Tag, Default, Rest...>;
  using type = std::conditional_t<here, First, typename Later::type>;
  static type from(First& first, Rest&... rest) {
    if constexpr (here)
      return std::move(first);
    else
      return Later::from(rest...);
  }
};

template <class P> struct Recognised {
  static constexpr bool value = fills<P, ScheduleTag> || fills<P, StalenessTag> ||
                                fills<P, PartitionTag> || fills<P, CollectiveTag> ||
                                fills<P, PlacementTag> || fills<P, DeviceTag> ||
                                fills<P, OptimizerTag> || fills<P, LossTag> || fills<P, OptionsTag>;
  static_assert(
      value,
      "stagger: an argument of with() is not a policy: it needs a policy_tag; policies are "
      "schedules, staleness "
      "models, partitioners, collectives, placements, devices, optimizers, losses and Options");
};

template <class P> struct WellFormed {
  static constexpr bool schedule = !fills<P, ScheduleTag> || SchedulePolicy<P>;
  static_assert(schedule,
                "stagger: not a SchedulePolicy: it needs policy_tag = stagger::ScheduleTag, a "
                "static bool 'flushes', "
                "'int chunks() const' and 'schedule::Table table(Shape) const'");
  static constexpr bool staleness = !fills<P, StalenessTag> || (StalenessPolicy<P> && [] {
    if constexpr (StalenessPolicy<P>) return P::synchronous || AsynchronousPolicy<P>;
    return false;
  }());
  static_assert(
      staleness,
      "stagger: not a StalenessPolicy: it needs policy_tag = stagger::StalenessTag, a static bool "
      "'synchronous' and, where that is false, 'int microbatches() const' and "
      "'int version(int minibatch, int available) const'");
  static constexpr bool partition = !fills<P, PartitionTag> || PartitionPolicy<P>;
  static_assert(partition,
                "stagger: not a PartitionPolicy: it needs policy_tag = stagger::PartitionTag and "
                "'std::vector<int> cuts(int layers) const'");
  static constexpr bool collective = !fills<P, CollectiveTag> || CollectivePolicy<P>;
  static_assert(collective,
                "stagger: not a CollectivePolicy: it needs policy_tag = stagger::CollectiveTag, "
                "communicator_type, "
                "'offers_all_reduce', 'offers_push_pull' and 'connect(int ranks) const'");
  static constexpr bool placement = !fills<P, PlacementTag> || PlacementPolicy<P>;
  static_assert(placement,
                "stagger: not a PlacementPolicy: it needs policy_tag = stagger::PlacementTag and "
                "'std::vector<int> place(int ranks, int places) const'");
  static constexpr bool optimizer = !fills<P, OptimizerTag> || OptimizerPolicy<P>;
  static_assert(optimizer,
                "stagger: not an OptimizerPolicy: it needs policy_tag = stagger::OptimizerTag, a "
                "static int 'states' and "
                "'void update(OptimizerView<T> const&, double gradient_scale, std::int64_t step) "
                "const noexcept'");
  static constexpr bool value =
      schedule && staleness && partition && collective && placement && optimizer;
};

template <class... P> struct AtMostOne {
  static constexpr bool value =
      count_of<ScheduleTag, P...> <= 1 && count_of<StalenessTag, P...> <= 1 &&
      count_of<PartitionTag, P...> <= 1 && count_of<CollectiveTag, P...> <= 1 &&
      count_of<PlacementTag, P...> <= 1 && count_of<DeviceTag, P...> <= 1 &&
      count_of<OptimizerTag, P...> <= 1 && count_of<LossTag, P...> <= 1 &&
      count_of<OptionsTag, P...> <= 1;
  static_assert(value,
                "stagger: two policies for one axis; give at most one schedule, staleness model, "
                "partitioner, "
                "collective, placement, device, optimizer, loss and Options");
};

template <class Schedule, class Staleness> struct ScheduleFitsStaleness {
  static constexpr bool value = Schedule::flushes || !Staleness::synchronous;
  static_assert(value,
                "stagger: this schedule never flushes, so weights change under running "
                "microbatches, but the staleness "
                "model promises that they do not; use a schedule that flushes, such as "
                "schedule::OneFOneB, or a staleness "
                "model that keeps weight versions");
};

/// A layer as it stands in a Pipeline or a Sequential.
template <class L> struct IsStage {
  using Layer = typename LayerTraits<L>::Layer;
  static constexpr bool value = Stage<Layer>;
  static_assert(value,
                "stagger: not a Stage: it needs Input and Output (default constructible), "
                "forward(Context&, x, y, saved), and "
                "backward(Context&, x, dy, dx, saved) or backward_input(Context&, x, dy, dx, "
                "saved) and, with parameters, "
                "backward_weight(Context&, x, dy, saved); leave out Saved only if the last "
                "argument is NothingSaved");
};

template <class A, class B> struct NeighboursFit {
  static constexpr bool value =
      std::same_as<typename LayerTraits<A>::Layer::Output, typename LayerTraits<B>::Layer::Input>;
  static_assert(value,
                "stagger: neighbouring stages do not fit: the Output of the first is not the Input "
                "of the second");
};

template <class L> struct GivesInputGradient {
  static constexpr bool value = HasInputGradient<typename LayerTraits<L>::Layer>;
  static_assert(
      value,
      "stagger: only the first layer may leave out the gradient of its input; this one needs "
      "backward_input(Context&, x, dy, dx, saved) or backward(Context&, x, dy, dx, saved)");
};

/// A run of equal layers, each the input of the next.
template <class L> struct RunFits {
  using Layer = typename LayerTraits<L>::Layer;
  static constexpr bool value =
      !LayerTraits<L>::repeated ||
      (std::same_as<typename Layer::Input, typename Layer::Output> && HasInputGradient<Layer>);
  static_assert(
      value,
      "stagger: a std::vector of layers is a chain: the Input of its layers must be their "
      "Output, and each must give the gradient of its input");
};

/// A type list of layers: Sequentials opened, runs kept.
template <class... L> struct Layers {};
template <class... L> struct Flatten;
template <class... Done> struct Flatten<Layers<Done...>> { using type = Layers<Done...>; };
template <class... Done, class... L, class... Rest>
struct Flatten<Layers<Done...>, Sequential<L...>, Rest...>
    : Flatten<Layers<Done..., L...>, Rest...> {};
template <class... Done, class First, class... Rest>
struct Flatten<Layers<Done...>, First, Rest...> : Flatten<Layers<Done..., First>, Rest...> {};

template <class First> consteval bool layers_fit(Layers<First>) { return true; }
template <class First, class Second, class... Rest>
consteval bool layers_fit(Layers<First, Second, Rest...>) {
  if constexpr (!(NeighboursFit<First, Second>::value && GivesInputGradient<Second>::value))
    return false;
  else
    return layers_fit(Layers<Second, Rest...>{});
}

template <class... L> struct Ends;
template <class First, class... Rest> struct Ends<Layers<First, Rest...>> {
  using Last =
      typename decltype((std::type_identity<First>{}, ..., std::type_identity<Rest>{}))::type;
  using Input = typename LayerTraits<First>::Layer::Input;
  using Output = typename LayerTraits<Last>::Layer::Output;
};

template <class... L> consteval bool model_is_legal(Layers<L...> layers) {
  if constexpr (!(IsStage<L>::value && ...))
    return false;
  else if constexpr (!(RunFits<L>::value && ...))
    return false;
  else
    return layers_fit(layers);
}

/// The first sentence that applies is the only one printed.
template <class... P> consteval bool policies_are_legal() {
  if constexpr (!(Recognised<P>::value && ...))
    return false;
  else if constexpr (!(WellFormed<P>::value && ...))
    return false;
  else if constexpr (!AtMostOne<P...>::value)
    return false;
  else
    return ScheduleFitsStaleness<
        typename Pick<ScheduleTag, schedule::OneFOneB, P...>::type,
        typename Pick<StalenessTag, staleness::Synchronous, P...>::type>::value;
}

}  // namespace stagger::detail
