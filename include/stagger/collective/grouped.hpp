// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A collective that says how the gradients of replicated stages are grouped.

#include <cstdint>
#include <vector>

#include <stagger/collective/grouping/optimal.hpp>
#include <stagger/collective/grouping/policy.hpp>
#include <stagger/collective/in_process.hpp>
#include <stagger/collective/policy.hpp>

namespace stagger::collective {

/// Collective policy: another one, and a grouping for the gradients that replicas add up while the
/// last backward runs.
///
/// A grouping that goes by times sees medians: for `measured_steps` steps, after one that warms up,
/// each layer's gradient is added up by itself and timed, and a line is fitted to what the sums
/// took. The decision holds from the next step on. Sums have the same bits in every grouping, so
/// nothing but time depends on it.
///
/// @code
///     pipeline.with(collective::Grouped<collective::grouping::Bucket>{.grouping = {1 << 20}},
///                   Options{.replicas = {2, 2}});
/// @endcode
template <GroupingPolicy G = grouping::Optimal, CollectivePolicy C = InProcess> struct Grouped {
  using policy_tag = CollectiveTag;
  using communicator_type = typename C::communicator_type;
  static constexpr bool offers_all_reduce = C::offers_all_reduce;
  static constexpr bool offers_push_pull = C::offers_push_pull;

  G grouping{};
  int measured_steps = 5;        ///< >= 0; with 0 the grouping sees no times, only bytes
  std::int64_t renew_every = 0;  ///< steps after which all is measured and decided anew; 0: never
  /// Over processes, each replica keeps the optimizer's state of the part of every layer that it
  /// adds up: it updates that part and hands it to the others. Same bits, 1 / replicas of the
  /// state. Replicas of one process share one state, whatever is said here.
  bool shard_optimizer = false;
  C over{};

  [[nodiscard]] std::vector<communicator_type> connect(int ranks) const {
    return over.connect(ranks);
  }

  /// For engines: the groups of the grouping at this address.
  [[nodiscard]] static std::vector<LayerGroup> groups_of(void const* grouping,
                                                         Backward const& backward, CostLine line) {
    return static_cast<G const*>(grouping)->groups(backward, line);
  }
  /// For engines: how many steps are to be measured.
  [[nodiscard]] int steps_to_measure() const noexcept {
    if constexpr (requires { G::uses_times; })
      if (!G::uses_times) return 0;
    return measured_steps;
  }
};

}  // namespace stagger::collective
