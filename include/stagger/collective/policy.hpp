// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The collective axis: how gradients are combined, over the replicas of a stage or with
///         the other workers of a parameter server.
///
/// Where `Options::replicas` gives a stage to several ranks, each has the gradients of its own rows
/// after the last backward of a step. The collective decides which layers' gradients are added up
/// together while that backward still runs (groups), how (`By`), and whether each replica keeps the
/// optimizer's state of all or of a part. Without replicas or a server there is nothing to combine.
///
/// The policies and their options:
///
/// | policy | take it when |
/// |---|---|
/// | `AllReduce{}` (default) | at first: groups end the step as early as measured times allow |
/// | `AllReduce{.grouping = grouping::Layerwise{}}` | start-ups of messages cost next to nothing |
/// | `AllReduce{.grouping = grouping::Single{}}` | a single all-reduce after backward is to be measured |
/// | `AllReduce{.grouping = grouping::Bucket{bytes}}` | nothing is to be measured, as in PyTorch |
/// | `AllReduce{.grouping = grouping::Greedy{}}` | MG-WFBP's published rule is to be tried |
/// | `AllReduce{.grouping = grouping::named(text)}` | the user of the program chooses |
/// | `AllReduce{.by = By::library}` | a large machine has a tuned MPI or NCCL |
/// | `AllReduce{.shard_optimizer = true}` | over processes or GPUs, the optimizer's state does not fit beside the parameters |
/// | `ParameterServer::worker(n)`, also mpi's and host's | several pipelines, each with data of its own, train one model |
/// | `GroupedPushes{server.worker(n)}` | likewise, and pushes take long beside a backward |
///
/// What is called, and when: `groups(backward, line)` is called once for each stage, between two
/// steps, whenever groups are decided. With `measured_steps` 0 that is before the first step, and
/// all times are 0. Otherwise it is after one warm-up step and `measured_steps` further steps, or
/// twice as many if all layers have the same size; `renew_every` steps later, measuring begins
/// again. If several processes share a pipeline, one of them is asked, or all are given the same
/// times. The other members are read, and `link()` of a worker is called, once by `Pipeline::with`.
///
/// What the engine promises in return: every group is added up once in each step, as soon as all
/// holders have its gradients, and before any update; the step fails as a whole if a holder does
/// (groups that GroupedPushes has pushed by then stay pushed).
/// `By::slices` has the same bits on threads, processes and GPUs, in every grouping.
///
/// In examples/11_own_collective.cpp, where `Groups` is a vector of LayerGroup, two sums for each
/// stage:
/// @code
/// struct Halves {
///   using policy_tag = sg::CollectiveTag;
///   By by = By::slices;
///   bool shard_optimizer = false;
///   int measured_steps = 0, renew_every = 0;  // this policy needs no measured times
///   Groups groups(Backward const& stage, CostLine) const {
///     int const n = stage.layers(), half = n / 2;
///     return half == 0 ? Groups{{n, 1}} : Groups{{n, half + 1}, {half, 1}};
///   }
/// };
/// @endcode
/// A group is {highest layer, lowest layer}. Layers of a stage are counted from 1, at its input;
/// groups list all of them once, from the last down.
/// A type that lacks a member gets "stagger: not a CollectivePolicy: it needs ...", which names it;
/// groups that do not list every layer once get an Error.

#include <stagger/core/requirements.hpp>

#include <concepts>
#include <cstdint>
#include <memory>
#include <vector>

namespace stagger {

/// Marks a collective policy: `using policy_tag = stagger::CollectiveTag;`.
struct CollectiveTag {};

namespace collective {

struct Backward;    // collective/iteration.hpp: times and gradients of a stage's layers
struct LayerGroup;  // likewise: consecutive layers, counted from 1
struct CostLine;    // collective/alpha_beta.hpp: start-up and time per byte of a sum

/// The way in which gradients are added up.
enum class By : std::uint8_t {
  /// Replica p of n adds up part p of each layer, in the order of replicas, and the others receive
  /// the sum (a reduce-scatter and an all-gather). Bits do not depend on the device, the groups or
  /// the number of processes.
  slices,
  /// One call of the library for each group: MPI_Iallreduce over processes, ncclAllReduce over
  /// processes with a GPU each; every replica of a stage is in a process of its own. The bits
  /// depend on the library and the number of ranks, and are the same in all replicas. Not available
  /// on threads or with cuda::Gpus.
  library,
};

}  // namespace collective

namespace detail {
class ParameterLink;  // parameters/parameter_link.hpp
}

/// One worker of a parameter server through which several pipelines train.
template <class P>
concept ServerPolicy = std::copyable<P> && std::same_as<typename P::policy_tag, CollectiveTag> &&
                       requires(P const policy) {
                         { policy.link() } -> std::same_as<std::shared_ptr<detail::ParameterLink>>;
                       };

/// A policy that adds up gradients over the replicas of a stage.
template <class P>
concept SumPolicy =
    std::copyable<P> && std::same_as<typename P::policy_tag, CollectiveTag> &&
    requires(P const policy, collective::Backward const& backward, collective::CostLine& line) {
      { policy.by } -> std::convertible_to<collective::By>;
      {
        policy.shard_optimizer
      } -> std::convertible_to<bool>;                         // over processes: a part of the state
      { policy.measured_steps } -> std::convertible_to<int>;  // >= 0
      { policy.renew_every } -> std::convertible_to<std::int64_t>;  // >= 0; 0: never
      // All layers of the stage, from the last down to the first.
      { policy.groups(backward, line) } -> std::same_as<std::vector<collective::LayerGroup>>;
    };

template <class P>
concept CollectivePolicy = SumPolicy<P> || ServerPolicy<P>;

}  // namespace stagger
