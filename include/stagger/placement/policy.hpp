// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The placement axis: which place (a thread, a GPU, a process) each rank runs on.
///
/// | placement | take it when |
/// |---|---|
/// | InOrder | in doubt (the default): neighbours share a place, so that few messages leave it |
/// | ExplicitMap{{0, 1, 1, 0}} | the place of each rank is known, by hand or from a plan |
///
/// Allocations (NodePartition, EqualDistribution: placement/allocation.hpp, HybridDistribution) and
/// fills (FreshFirst, AppendFirst, ScatterFirst: placement/fill.hpp) choose devices of a cluster
/// for a planner; they are not policies of a pipeline. placement/catalog.hpp lists allocations, and
/// placements of a parameter server's layers, by name.
///
/// | member | when it is asked | |
/// |---|---|---|
/// | `place(ranks, places)` | once, in `with` | [ranks] a place for each, 0 <= place < places; replicas of one position are ranks that follow each other |
///
/// The engine promises: a result of another length, or with a place that does not exist, is refused
/// before anything runs; a device that cannot obey a placement refuses it (`obeys_placement`,
/// engine/device.hpp). The bits of a step do not depend on the places.
///
/// In examples/14_own_policies.cpp:
/// @code
/// struct RoundRobin {
///   using policy_tag = sg::PlacementTag;
///   std::vector<int> place(int ranks, int places) const {
///     std::vector<int> place;
///     for (int r = 0; r < ranks; ++r) place.push_back(r % places);
///     return place;
///   }
/// };
/// @endcode
/// A type that lacks the function gets "stagger: not a PlacementPolicy: it needs ...".

#include <stagger/core/requirements.hpp>

#include <concepts>
#include <vector>

namespace stagger {

/// Marks a placement: `using policy_tag = stagger::PlacementTag;`.
struct PlacementTag {};

template <class P>
concept PlacementPolicy = std::copyable<P> && std::same_as<typename P::policy_tag, PlacementTag> &&
                          requires(P const policy, int ranks, int places) {
                            { policy.place(ranks, places) } -> std::same_as<std::vector<int>>;
                          };

}  // namespace stagger
