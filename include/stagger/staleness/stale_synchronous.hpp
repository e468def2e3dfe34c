// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Stale synchronous parallelism: a bound on how far workers drift apart.
/// @source Ho et al., "More Effective Distributed ML via a Stale Synchronous Parallel Parameter
///         Server", NIPS 2013.

#include <stagger/staleness/policy.hpp>

namespace stagger::staleness {

/// Step m (from 0) of a worker sees all of its own pushes and at least the first m - bound of every
/// other worker: the fastest is at most `bound` steps ahead of the slowest. With a bound of 0 all
/// stay in step, as with Synchronous, except that the order in which the server adds is not fixed.
struct StaleSynchronous {
  using policy_tag = StalenessTag;
  static constexpr bool synchronous = true;  // the stages of a worker end a step together
  static constexpr Pushes pushes = Pushes::gradients;
  static constexpr Adds adds = Adds::on_arrival;
  int bound = 0;  ///< s >= 0, in steps
  [[nodiscard]] constexpr int minibatches() const noexcept { return 1; }
  [[nodiscard]] constexpr int needs(int step) const noexcept {
    return step > bound ? step - bound : 0;
  }
};

static_assert(ExchangingPolicy<StaleSynchronous>);

}  // namespace stagger::staleness
