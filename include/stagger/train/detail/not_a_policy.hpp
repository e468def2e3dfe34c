// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The compiler errors for policies that cannot work, each of which names what is missing.
///         Nothing here is instantiated for correct policies.

#include <concepts>
#include <cstdint>
#include <memory>
#include <string_view>
#include <type_traits>

#include <stagger/engine/setup.hpp>
#include <stagger/train/detail/policies.hpp>

namespace stagger {
struct GroupingTag;  // of policies that belong to no axis
struct FillTag;
struct AllocationTag;
struct ParameterPlacementTag;
}  // namespace stagger

namespace stagger::detail {

// Each static_assert below has a bool of its own, since compilers explain every part of a concept.

template <class P> struct NotAPolicy {
  static constexpr bool has_tag = HasTag<P>;
  static constexpr bool is_name =
      requires(std::string_view& name, P const& policy) { name = policy; };
  static_assert(!is_name,
                "stagger: an argument of with() is a name: a schedule by its name is "
                "schedule::Named{\"1f1b\"}, a partitioner partition::Named{\"min-max\"}; include "
                "<stagger/schedule/named.hpp> or <stagger/partition/catalog.hpp>");
  static_assert(is_name || has_tag,
                "stagger: an argument of with() is not a policy: it needs a policy_tag; policies "
                "are schedules, staleness models, partitioners, collectives, placements, devices, "
                "optimizers, losses, observers and Options");
  template <class Tag> static constexpr bool fills_no = !fills<P, Tag>;
  static constexpr bool known = !(fills_no<GroupingTag> && fills_no<FillTag> &&
                                  fills_no<AllocationTag> && fills_no<ParameterPlacementTag>);
  static_assert(fills_no<GroupingTag>,
                "stagger: a grouping is a part of the collective: give with() "
                "collective::AllReduce{.grouping = ...} with it");
  static_assert(fills_no<FillTag>,
                "stagger: a choice of free devices is no placement of ranks: give with() "
                "placement::ExplicitMap with what its fill(occupied, devices) returns");
  static_assert(fills_no<AllocationTag>,
                "stagger: an allocation is no placement of ranks: give with() "
                "placement::ExplicitMap with one of the lists that its allocate(cluster, workers) "
                "returns");
  static_assert(fills_no<ParameterPlacementTag>,
                "stagger: a placement of parameters is no placement of ranks: call its "
                "layer_nodes(layers, nodes, workers), and leave it out of with()");
  static_assert(!has_tag || known,
                "stagger: an argument of with() has the policy_tag of no axis; the tags are those "
                "of schedules, staleness models, partitioners, collectives, placements, devices, "
                "optimizers, losses, observers and Options");
};

template <class P>
concept HasPart = std::copyable<P> && requires(P const& policy) {
  { policy.part() } -> std::convertible_to<std::shared_ptr<PolicyPart const>>;
};
template <class P> struct NotAPart {
  static_assert(HasPart<P>,
                "stagger: a policy with PartTag needs part(), as that of Observe; to be told of "
                "steps, derive from StepObserver and give with() Observe{std::make_shared<...>()}");
};

template <class P> struct NotASchedule {
  static constexpr bool copyable = std::copyable<P>;
  static constexpr bool flushes = requires { typename std::bool_constant<P::flushes>; };
  static constexpr bool chunks = requires(P const& policy) {
    { policy.chunks() } -> std::same_as<int>;
  };
  static_assert(copyable, "stagger: not a SchedulePolicy: it cannot be copied and assigned");
  static_assert(!copyable || flushes,
                "stagger: not a SchedulePolicy: it needs 'static constexpr bool flushes', true if "
                "every stage is idle when an iteration ends");
  static_assert(!copyable || !flushes || chunks,
                "stagger: not a SchedulePolicy: it needs a function 'int chunks() const', the "
                "number of stages that each rank runs");
  static_assert(!copyable || !flushes || !chunks,
                "stagger: not a SchedulePolicy: it needs 'schedule::Table table(Shape) const'");
};

/// Whether the optional members that a schedule has are what the engine takes them for.
template <class P> struct ScheduleOptions {
  static constexpr bool proven =
      !requires { &P::proven; } || requires { typename std::bool_constant<P::proven>; };
  static constexpr bool slices = !requires { &P::slices; } || requires(P const& policy) {
    requires std::same_as<std::remove_cvref_t<decltype(policy.slices)>, int>;
  };
  static constexpr bool facts = !requires { &P::facts; } || requires(P const& policy) {
    { policy.facts() } -> std::same_as<schedule::Facts>;
  };
  static constexpr bool fit = proven && slices && facts;
};
template <class P> struct WrongScheduleOption {
  static constexpr bool proven = ScheduleOptions<P>::proven, slices = ScheduleOptions<P>::slices;
  static_assert(proven,
                "stagger: not a SchedulePolicy: its 'proven' must be 'static constexpr bool "
                "proven', true if its tables are known to be legal");
  static_assert(!proven || slices,
                "stagger: not a SchedulePolicy: its 'slices' must be a member 'int slices', into "
                "how many slices of the sequence it cuts a microbatch");
  static_assert(!proven || !slices,
                "stagger: not a SchedulePolicy: its 'facts' must be 'schedule::Facts facts() "
                "const', of a schedule chosen while the program runs");
};

template <class P> struct NotAStalenessModel {
  static constexpr bool synchronous = requires { typename std::bool_constant<P::synchronous>; };
  static constexpr bool copyable = std::copyable<P>;
  static_assert(copyable, "stagger: not a StalenessPolicy: it cannot be copied and assigned");
  static_assert(!copyable || synchronous,
                "stagger: not a StalenessPolicy: it needs 'static constexpr bool synchronous'");
  static_assert(!copyable || !synchronous,
                "stagger: not a StalenessPolicy: it is not synchronous, so it needs 'int "
                "microbatches() const' and 'int version(int minibatch, int available) const'");
};

/// Whether a staleness model has any of the members of one of several workers, of whatever type.
template <class P>
inline constexpr bool has_worker_member = requires { &P::pushes; } || requires { &P::adds; } ||
                                          requires { &P::minibatches; } || requires { &P::needs; };
template <class P> struct NotAWorkersModel {
  static constexpr bool pushes = requires(P const& model) {
    { model.pushes } -> std::convertible_to<staleness::Pushes>;
  };
  static constexpr bool adds = requires(P const& model) {
    { model.adds } -> std::convertible_to<staleness::Adds>;
  };
  static constexpr bool minibatches = requires(P const& model) {
    { model.minibatches() } -> std::same_as<int>;
  };
  static_assert(pushes,
                "stagger: not a staleness model of several workers: it needs 'staleness::Pushes "
                "pushes'; a model of one pipeline has no pushes, adds, minibatches and needs");
  static_assert(!pushes || adds,
                "stagger: not a staleness model of several workers: it needs 'staleness::Adds "
                "adds', when the server adds what workers push");
  static_assert(!pushes || !adds || minibatches,
                "stagger: not a staleness model of several workers: it needs 'int minibatches() "
                "const', how many minibatches are in one push");
  static_assert(!pushes || !adds || !minibatches,
                "stagger: not a staleness model of several workers: it needs 'int needs(int "
                "minibatch) const', how many pushes of every worker its weights must contain");
};

/// Whether a staleness model has no `average_state`, or one that the engine reads.
template <class P>
inline constexpr bool averages_state = !requires { &P::average_state; } || requires {
  requires AveragingPolicy<P>;
  requires std::same_as<std::remove_cv_t<decltype(P::average_state)>, bool>;
};
template <class P> struct WrongAverageState {
  static constexpr bool read = averages_state<P>;
  static_assert(read,
                "stagger: not a StalenessPolicy: its 'average_state' must be a bool, of a model "
                "with 'static constexpr staleness::Pushes pushes = staleness::Pushes::weights'");
};

template <class P> struct NotAPartitioner {
  static constexpr bool copyable = std::copyable<P>;
  static_assert(copyable, "stagger: not a PartitionPolicy: it cannot be copied and assigned");
  static_assert(!copyable,
                "stagger: not a PartitionPolicy: it needs 'std::vector<int> cuts(int layers) "
                "const', the first layer of each stage after the first");
};

template <class P> struct NotACollective {
  static constexpr bool copyable = std::copyable<P>;
  static_assert(copyable, "stagger: not a CollectivePolicy: it cannot be copied and assigned");
  static constexpr bool by = requires(P const& policy) {
    { policy.by } -> std::convertible_to<collective::By>;
  };
  static constexpr bool shard = requires(P const& policy) {
    { policy.shard_optimizer } -> std::convertible_to<bool>;
  };
  static constexpr bool measured = requires(P const& policy) {
    { policy.measured_steps } -> std::convertible_to<int>;
  };
  static constexpr bool renew = requires(P const& policy) {
    { policy.renew_every } -> std::convertible_to<std::int64_t>;
  };
  static_assert(!copyable || by,
                "stagger: not a CollectivePolicy: it needs 'collective::By by', how gradients are "
                "added up");
  static_assert(!copyable || !by || shard,
                "stagger: not a CollectivePolicy: it needs 'bool shard_optimizer', whether each "
                "replica keeps only a part of the optimizer's state");
  static_assert(!copyable || !by || !shard || measured,
                "stagger: not a CollectivePolicy: it needs 'int measured_steps', how many steps "
                "are measured before groups are decided, or 0");
  static_assert(!copyable || !by || !shard || !measured || renew,
                "stagger: not a CollectivePolicy: it needs 'std::int64_t renew_every', after how "
                "many steps groups are decided again, or 0");
  static_assert(!copyable || !by || !shard || !measured || !renew,
                "stagger: not a CollectivePolicy: it needs 'std::vector<collective::LayerGroup> "
                "groups(collective::Backward const&, collective::CostLine) const', the layers "
                "whose gradients are added up together");
};

template <class P> struct NotAPlacement {
  static constexpr bool copyable = std::copyable<P>;
  static_assert(copyable, "stagger: not a PlacementPolicy: it cannot be copied and assigned");
  static_assert(!copyable,
                "stagger: not a PlacementPolicy: it needs 'std::vector<int> place(int ranks, int "
                "places) const', a place for each rank");
};

template <class P> struct NotADevice {
  static constexpr bool copyable = std::copyable<P>;
  static constexpr bool backend = requires { typename P::Backend; };
  static constexpr bool traits = requires {
    { P::traits } -> std::convertible_to<DeviceTraits>;
  };
  static_assert(copyable, "stagger: not a DevicePolicy: it cannot be copied and assigned");
  static_assert(!copyable || backend,
                "stagger: not a DevicePolicy: it must name its back end: 'using Backend = ...;'");
  static_assert(
      !copyable || !backend || traits,
      "stagger: not a DevicePolicy: it needs 'static constexpr DeviceTraits traits{...}', "
      "what it can do beyond running a step");
  static_assert(!copyable || !backend || !traits,
                "stagger: not a DevicePolicy: it needs 'int places() const', how many places a "
                "placement may spread the ranks over");
};

template <class P> struct NotAnOptimizer {
  static constexpr bool copyable = std::copyable<P>;
  static constexpr bool states = requires { typename std::integral_constant<int, P::states>; };
  static constexpr bool few = [] {
    if constexpr (states) return P::states >= 0 && P::states <= 2;
    return true;
  }();
  static constexpr bool whole = requires { typename std::bool_constant<P::element_wise>; };
  template <class T>
  static constexpr bool updates =
      requires(P const& optimizer) { optimizer.update(OptimizerView<T>{}, 1.0, std::int64_t{1}); };
  static constexpr bool both = updates<float> && updates<double>;
  static_assert(copyable, "stagger: not an OptimizerPolicy: it cannot be copied and assigned");
  static_assert(!copyable || states,
                "stagger: not an OptimizerPolicy: it needs 'static constexpr int states', the "
                "number of values that it keeps for each value of a parameter");
  static_assert(!copyable || few,
                "stagger: not an OptimizerPolicy: 'states' must be 0, 1 or 2: an OptimizerView has "
                "room for two values of state for each value of a parameter");
  static_assert(!copyable || !states || !few || whole,
                "stagger: not an OptimizerPolicy: it needs 'static constexpr bool element_wise', "
                "true if it updates every element independently of the others, so that replicas "
                "may each update a part");
  static_assert(!copyable || !states || !few || !whole || both,
                "stagger: not an OptimizerPolicy: it needs 'template <class T> void "
                "update(OptimizerView<T> const&, double gradient_scale, std::int64_t step) const "
                "noexcept', for float and for double");
  static_assert(!copyable || !states || !few || !whole || !both,
                "stagger: not an OptimizerPolicy: its update must be noexcept: when it runs, the "
                "step is already decided");
};

/// Whether the optional members that an optimizer has are what the engine takes them for.
template <class P> struct OptimizerOptions {
  template <class T>
  static constexpr bool changes = requires(P const& optimizer) {
    { optimizer.change(OptimizerView<T>{}, 1.0, std::int64_t{1}) } noexcept;
  };
  static constexpr bool named = requires { &P::change; } || requires {
    &P::template change<float>;
  } || changes<float> || changes<double>;
  static constexpr bool change = !named || (changes<float> && changes<double>);
  static constexpr bool enqueues =
      !requires { &P::enqueues; } || requires { typename std::bool_constant<P::enqueues>; };
  static constexpr bool fit = change && enqueues;
};
template <class P> struct WrongOptimizerOption {
  static constexpr bool change = OptimizerOptions<P>::change;
  static_assert(change,
                "stagger: not an OptimizerPolicy: its 'change' must take what update takes, for "
                "float and for double, and be const and noexcept");
  static_assert(!change,
                "stagger: not an OptimizerPolicy: its 'enqueues' must be 'static constexpr bool "
                "enqueues', true if update enqueues a kernel");
};

template <class L> struct NotALoss {
  static constexpr bool copyable = std::copyable<L>;
  static_assert(copyable, "stagger: not a LossPolicy: it cannot be copied and assigned");
  static_assert(!copyable,
                "stagger: not a LossPolicy: it has no public type Target; add 'using Target = "
                "...;', what a batch has for each of its inputs");
};

/// Says why a loss takes no `Y`.
template <class L, class Y> struct LossDoesNotFit {
  using Target = typename L::Target;
  static constexpr bool terms = requires(L const& loss, Target const& target) {
    { loss.terms(target) } -> std::convertible_to<double>;
  };
  static constexpr bool value =
      requires(L const& loss, Context& context, Y const& y, Target const& target) {
        { loss.value(context, y, target) } -> std::convertible_to<double>;
      };
  static_assert(terms,
                "stagger: the loss does not work: it needs 'double terms(Target const&) const', "
                "how many terms a microbatch has");
  static_assert(!terms || value,
                "stagger: the loss does not accept the Output of the last stage: it needs 'double "
                "value(Context&, Output const& y, Target const&) const'");
  static_assert(!terms || !value,
                "stagger: the loss does not accept the Output of the last stage: it needs 'double "
                "value_and_gradient(Context&, Output const& y, Target const&, double scale, "
                "Output& dy) const'");
};

/// Says which axis has two policies.
template <class Tag> struct TwoPolicies {
  template <class Other> static constexpr bool is_not = !std::is_same_v<Tag, Other>;
  static_assert(is_not<ScheduleTag>, "stagger: two schedules; give at most one");
  static_assert(is_not<StalenessTag>, "stagger: two staleness models; give at most one");
  static_assert(is_not<PartitionTag>, "stagger: two partitioners; give at most one");
  static_assert(is_not<CollectiveTag>, "stagger: two collectives; give at most one");
  static_assert(is_not<PlacementTag>, "stagger: two placements; give at most one");
  static_assert(is_not<DeviceTag>,
                "stagger: two devices; give at most one, a pipeline runs on one kind");
  static_assert(is_not<OptimizerTag>, "stagger: two optimizers; give at most one");
  static_assert(is_not<LossTag>, "stagger: two losses; give at most one, which may add up several");
  static_assert(is_not<OptionsTag>, "stagger: two Options; set all members of one");
};

}  // namespace stagger::detail
