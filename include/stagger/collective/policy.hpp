// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Axis 5: what a collective policy is.

#include <concepts>
#include <vector>

#include <stagger/collective/communicator.hpp>

namespace stagger {

/// Marks a collective policy: `using policy_tag = stagger::CollectiveTag;`.
struct CollectiveTag {};

/// A collective policy says through what the ranks of a run talk to each other.
///
/// It is a small value that is copied freely; the communicators it makes are not.
template <class P>
concept CollectivePolicy = std::copyable<P> &&
    std::same_as<typename P::policy_tag, CollectiveTag> &&
    collective::Communicator<typename P::communicator_type> && requires(P const policy, int ranks) {
  { P::offers_all_reduce } -> std::convertible_to<bool>;  // can replicas add their gradients?
  { P::offers_push_pull } -> std::convertible_to<bool>;   // is there a parameter server behind it?
  // The communicators of those ranks of the run that live in this process, lowest rank first.
  { policy.connect(ranks) } -> std::same_as<std::vector<typename P::communicator_type>>;
};

}  // namespace stagger
