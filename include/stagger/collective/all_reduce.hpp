// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The all-reduce of the gradients of a stage's replicas.

#include <cstdint>
#include <vector>

#include <stagger/collective/grouping/optimal.hpp>
#include <stagger/collective/grouping/policy.hpp>
#include <stagger/collective/policy.hpp>

namespace stagger::collective {

/// Collective policy: all-reduces gradients in the groups (buckets) that a grouping policy chooses.
///
/// A grouping that uses times is given medians: after one warm-up step, each layer's gradient is
/// added up by itself and timed for `measured_steps` steps, and a line is fitted to the times of
/// the sums. The groups hold from the next step on. Without a flush each update of a stage has one
/// sum, and the grouping is not asked.
///
/// @code
///     pipeline.with(collective::AllReduce{.grouping = collective::grouping::Bucket{1 << 20}},
///                   Options{.replicas = {2, 2}});
/// @endcode
template <GroupingPolicy G = grouping::Optimal> struct AllReduce {
  using policy_tag = CollectiveTag;

  G grouping{};
  By by = By::slices;
  /// Over processes or GPUs, each replica keeps the optimizer's state of the part of every layer that
  /// it adds up: it updates that part and hands it to the others. The bits are the same, and each has
  /// 1 / replicas of the state, or with an optimizer that is not element_wise that of some whole
  /// parameters. Over mpi::Processes, a step needs room for another 1 / replicas of the
  /// values and the state, so memory is saved from three replicas on with AdamW, and from four on
  /// with Sgd. Replicas on threads of one process, or on one GPU, share one state in any case.
  bool shard_optimizer = false;
  int measured_steps =
      detail::uses_times<G>() ? 5 : 0;  ///< >= 0; with 0 the grouping sees bytes, no times
  std::int64_t renew_every = 0;  ///< steps after which all is measured and decided again; 0: never

  [[nodiscard]] constexpr std::vector<LayerGroup> groups(Backward const& backward,
                                                         CostLine line) const {
    return grouping.groups(backward, line);
  }
};

}  // namespace stagger::collective
