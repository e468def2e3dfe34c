// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The partition axis: where a chain of layers is cut into stages.
///
/// A partitioner cuts the layers of the one Sequential from which a pipeline is made. A pipeline of
/// several arguments is cut by hand, and takes no partitioner.
///
/// | partitioner | take it when |
/// |---|---|
/// | Even{stages} | layers cost about the same |
/// | Cuts{{3, 7}} | the first layer of each stage after the first is known, by hand or from a plan |
/// | Weighed{MinMax{}, costs} | costs were measured: any partitioner by cost (partition/costs.hpp) as a policy |
/// | LayerSplit{.group = 2, .over = Even{4}} | groups of ranks are to share layers that hold most parameters; `over` cuts |
///
/// Partitioners by cost know the devices, and return more than cuts: MinMax (HetPipe: the slowest
/// stage as fast as it can be, within memory), PipeDream (stages of several replicas), Block
/// (torchgpipe: sums as even as possible). partition/catalog.hpp lists them for programs that
/// choose one by its name.
///
/// | member | when it is asked | |
/// |---|---|---|
/// | `cuts(layers)` | once, in `with` | [stages - 1] first layer of each stage after the first, strictly rising, in 1 .. layers - 1; throws Error for a number of layers that it cannot cut |
///
/// The engine promises: it calls `cuts` once, with the model's number of layers; cuts that do not
/// rise, or are out of range, are refused before anything runs. The bits of a step do not depend on
/// the cuts.
///
/// In examples/14_own_policies.cpp:
/// @code
/// struct FirstAlone {
///   using policy_tag = sg::PartitionTag;
///   std::vector<int> cuts(int layers) const {
///     if (layers < 2) throw sg::Error(sg::Errc::bad_configuration, "give FirstAlone 2 layers");
///     return {1};  // the first layer of the second stage
///   }
/// };
/// @endcode
/// A type that lacks the function gets "stagger: not a PartitionPolicy: it needs ...".

#include <stagger/core/requirements.hpp>

#include <concepts>
#include <vector>

namespace stagger {

/// Marks a partitioner: `using policy_tag = stagger::PartitionTag;`.
struct PartitionTag {};

template <class P>
concept PartitionPolicy = std::copyable<P> && std::same_as<typename P::policy_tag, PartitionTag> &&
                          requires(P const policy, int layers) {
                            { policy.cuts(layers) } -> std::same_as<std::vector<int>>;
                          };

}  // namespace stagger
