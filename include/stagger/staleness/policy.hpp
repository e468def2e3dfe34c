// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Axis 2: what a staleness model is.

#include <stagger/core/requirements.hpp>

#include <concepts>
#include <type_traits>

namespace stagger {

/// Marks a staleness model: `using policy_tag = stagger::StalenessTag;`.
struct StalenessTag {};

/// A staleness model says which weights a microbatch sees.
///
/// A synchronous one has nothing to say: all see the weights of the last finished step. An
/// asynchronous one makes a stage update its weights as soon as it has the gradient of a minibatch,
/// and answers
///  - `microbatches()`: how many microbatches make a minibatch, >= 1
///  - `version(minibatch, available)`: how many updates the weights contain that a minibatch sees
///  at a stage which has
///    made `available` of them when its forward runs; 0 <= version <= available. Forward and
///    backward see the same.
template <class P>
concept StalenessPolicy =
    std::copyable<P> && std::same_as<typename P::policy_tag, StalenessTag> && requires {
  // does every microbatch see the weights of the last finished step?
  typename std::bool_constant<P::synchronous>;
};

template <class P>
concept AsynchronousPolicy = StalenessPolicy<P> && !P::synchronous && requires(P const policy) {
  { policy.microbatches() } -> std::same_as<int>;
  { policy.version(0, 0) } -> std::same_as<int>;
};

}  // namespace stagger
