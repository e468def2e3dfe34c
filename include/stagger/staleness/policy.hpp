// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Axis 2: what a staleness model is.

#include <concepts>

namespace stagger {

/// Marks a staleness model: `using policy_tag = stagger::StalenessTag;`.
struct StalenessTag {};

/// A staleness model says which weights a microbatch sees.
template <class P>
concept StalenessPolicy =
    std::copyable<P> && std::same_as<typename P::policy_tag, StalenessTag> && requires {
  {
    P::synchronous
    } -> std::convertible_to<bool>;  // does every microbatch see the weights of the last finished
                                     // step?
};

}  // namespace stagger
