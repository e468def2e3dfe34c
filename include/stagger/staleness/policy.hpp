// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The staleness axis: which weights a microbatch sees.
///
/// Under a synchronous model all microbatches of a step see the weights that the step before left,
/// and all stages update together; `train.step(batch)` takes such a step. Under an asynchronous one
/// a stage updates as soon as it has the gradient of a minibatch, while others still run, and keeps
/// the versions of its weights that are still needed; `train.stream(batch)` takes many minibatches.
///
/// | model | take it when |
/// |---|---|
/// | Synchronous | in doubt (the default): the result is that of one device |
/// | WeightStashing | the pipeline should never drain; a stage keeps a version for each minibatch in flight (PipeDream) |
/// | DoubleBuffered{m} | the same with two versions, and minibatches of m >= P microbatches (PipeDream-2BW) |
/// | Delayed{Nm} | all stages should be equally far behind (HetPipe, one virtual worker) |
///
/// Of several pipelines that train one model through a collective::ParameterServer
/// (docs/workers.md), Synchronous is bulk synchronous parallelism, and:
///
/// | model | take it when |
/// |---|---|
/// | StaleSynchronous{s} | the speed of workers varies; a worker may be s steps ahead of the slowest. If pushes are added in worker order, the bits do not depend on timing |
/// | Asynchronous | no worker should wait for another |
/// | LocalSgd{T} | the link is narrow: workers exchange their weights after every T steps |
/// | RoundRobinSynchronous | the server's link is narrow: workers push one after the other |
/// | WaveSynchronous{Nm, D} | workers are pipelines that do not flush (HetPipe) |
/// | OverlappedSynchronous<...> | the link to the server takes about as long as a step computes (OSP) |
///
/// | member | when it is asked | |
/// |---|---|---|
/// | `synchronous` | compiling `with` | true: `microbatches` and `version` are not needed |
/// | `microbatches()` | in `with` | how many microbatches make a minibatch, >= 1 |
/// | `version(minibatch, available)` | laying out a new number of microbatches: for each microbatch of each stage, twice | how many updates the weights that it sees contain: 0 to `available`, the number that the stage has made when its forward runs |
/// | `pushes` | once, in `with` | of a model of several workers: gradients, changes or weights. `weights` must be known when compiling: make the member static constexpr |
/// | `adds` | once, in `with` | when the server adds what workers push |
/// | `minibatches()` | once, in `with` | how many minibatches are in one push, >= 1 |
/// | `needs(minibatch)` | in `with`, for many minibatches, to see how far apart workers may be; then in each step, or, while a stream is laid out, for each minibatch of each stage | how many of the first pushes of every worker its weights must contain; 0 or less: none. If it is less than for the minibatch before, the greater number holds. At most minibatch / minibatches(), or, in streams, version(...) / minibatches(). Exactly that for gradients that are added in the order of workers |
/// | `average_state` | once, in `with`; optional | a bool, of a model that pushes weights: whether the server takes the mean of the optimizers' states, too |
/// | `check()`, or none | once, in `with` | throws an Error that names the member whose value cannot be |
///
/// `version` is called before anything runs, with numbers that follow from the table: it must
/// return the same for the same numbers, and cannot depend on times. If streams take the model,
/// schedule::play_workers also asks for `minibatches` and `needs`, and so do the gate of
/// schedule::Fifo and plan::VirtualWorkers (schedule::WaveModel).
///
/// The engine promises: backward sees the weights that forward saw; a version is kept until its
/// last reader is done, and no longer; the table decides which gradients are in which update, so
/// that the bits do not depend on the speed of the ranks; a stream that fails leaves the parameters
/// from before it, or, of a worker, goes on from the server's weights.
///
/// In examples/14_own_policies.cpp:
/// @code
/// struct EvenUpdates {
///   using policy_tag = sg::StalenessTag;
///   static constexpr bool synchronous = false;
///   int microbatches() const { return 1; }  // of a minibatch
///   int version(int, int available) const { return available / 2 * 2; }
/// };
/// @endcode
/// A type that lacks a member gets "stagger: not a StalenessPolicy: it needs ...", which names it,
/// or, with some of `pushes`, `adds`, `minibatches` and `needs` but not all, "stagger: not a
/// staleness model of several workers: it needs ..."; a version that has not been made yet gets an
/// Error that names stage and microbatch.

#include <stagger/core/requirements.hpp>

#include <concepts>
#include <type_traits>

#include <stagger/model/exchange.hpp>

namespace stagger {

namespace detail {
struct LateCalls;
/// Whether workers send some layers late; specialised by models with late layers.
template <class P> inline constexpr bool sends_late = false;
template <class P> inline constexpr LateCalls const* late_calls_of = nullptr;
}  // namespace detail

/// Marks a staleness model: `using policy_tag = stagger::StalenessTag;`.
struct StalenessTag {};

template <class P>
concept StalenessPolicy = std::copyable<P> && std::same_as<typename P::policy_tag, StalenessTag> &&
                          requires { typename std::bool_constant<P::synchronous>; };

/// A staleness model that can take the number of microbatches in flight from the schedule: `follow`
/// is called with it before anything else.
template <class P>
concept FollowingPolicy = StalenessPolicy<P> && requires(P policy) { policy.follow(1); };

template <class P>
concept AsynchronousPolicy = StalenessPolicy<P> && !P::synchronous && requires(P const policy) {
  { policy.microbatches() } -> std::same_as<int>;
  { policy.version(0, 0) } -> std::same_as<int>;
};

/// A staleness model of several workers, which train through a parameter server.
template <class P>
concept ExchangingPolicy = StalenessPolicy<P> && requires(P const policy) {
  { policy.pushes } -> std::convertible_to<staleness::Pushes>;
  { policy.adds } -> std::convertible_to<staleness::Adds>;
  { policy.minibatches() } -> std::same_as<int>;
  { policy.needs(0) } -> std::same_as<int>;
};

/// A staleness model in which workers take local steps, and the server takes the mean of their
/// weights.
template <class P>
concept AveragingPolicy = ExchangingPolicy<P> && P::synchronous && requires {
  requires std::bool_constant<staleness::averages(P::pushes)>::value;
};

}  // namespace stagger
