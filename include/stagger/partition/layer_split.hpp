// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Tensor parallelism: layers that groups of ranks share, inside stages that another
///         partitioner cuts.

#include <vector>

#include <stagger/partition/cuts.hpp>
#include <stagger/partition/policy.hpp>
#include <stagger/partition/split_plan.hpp>

namespace stagger::partition {

/// The ranks of each position form groups of `group`: rank i is member i mod `group` of group i div
/// `group`. Before the first layer that is split, a rank works on its own share of the rows, as
/// without groups; after it on all rows of its group, with a part of each layer for which splitting
/// pays (plan_split). Positions that hold such layers, or later ones, need a multiple of `group`
/// ranks. With a group of 1 nothing changes, except that with Update::each_pass the layers from the
/// first one on for which splitting pays are updated after each microbatch, too.
///
/// Update::each_pass goes with neither Options::clip_norm nor sharded optimizer state, and on GPUs
/// and over processes with one group alone; several add up their gradients in each pass. A microbatch sees the updates made before its forward; its backward sees the
/// same weights. The optimizer's step number of these layers counts microbatches, as if all steps
/// had as many.
///
/// @code
///     #include <stagger/engine/groups.hpp>
///     auto train = sg::Pipeline{model}.with(sg::partition::LayerSplit{.group = 2},
///                                           sg::Options{.replicas = {8}}, ...);
///     sg::partition::LayerSplit{.group = 2, .over = sg::partition::Even{4}}   // four stages
/// @endcode
template <PartitionPolicy P = Cuts> struct LayerSplit {
  using policy_tag = PartitionTag;
  int group = 1;           ///< members, >= 1
  P over{};                ///< cuts the layers into stages; by default there is one
  double threshold = 225;  ///< as in SplitRules
  bool pairs = false;      ///< likewise
  Update update = Update::accumulate;

  [[nodiscard]] constexpr std::vector<int> cuts(int layers) const { return over.cuts(layers); }
  [[nodiscard]] constexpr SplitRules rules() const noexcept { return {group, threshold, pairs}; }
};

}  // namespace stagger::partition
