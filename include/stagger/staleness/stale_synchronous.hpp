// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Stale synchronous parallelism: a bound on how far workers drift apart.
/// @source Ho et al., "More Effective Distributed ML via a Stale Synchronous Parallel Parameter
///         Server", NIPS 2013.

#include <stagger/core/error.hpp>
#include <stagger/staleness/policy.hpp>

namespace stagger::staleness {

/// Step m (from 0) of a worker sees all of its own pushes and at least the first m - bound of every
/// other worker: the fastest is at most `bound` steps ahead of the slowest. With a bound of 0 all
/// stay in step, as with Synchronous, except that the order in which pushes are added on arrival is
/// not fixed.
struct StaleSynchronous {
  using policy_tag = StalenessTag;
  static constexpr bool synchronous = true;  // the stages of a worker end a step together
  int bound = 0;                             ///< s >= 0, in steps
  /// Gradients, or the changes that each worker's own optimizer makes of them.
  Pushes pushes = Pushes::gradients;
  /// With on_arrival a step sees the newest pushes; with in_worker_order precisely those that it
  /// needs, so that the bits do not depend on timing. Then a bound above 0 takes changes: a worker
  /// keeps its last ones, up to `bound` copies of the weights, and adds those that are missing.
  Adds adds = Adds::on_arrival;
  /// @throws Error  bad_configuration for a bound that is no number of steps
  void check() const {
    if (bound < 0)
      raise(Errc::bad_configuration, "a worker cannot be ", bound,
            " steps ahead of the slowest; let StaleSynchronous::bound be at least 0");
  }
  [[nodiscard]] constexpr int minibatches() const noexcept { return 1; }
  [[nodiscard]] constexpr int needs(int step) const noexcept {
    return step > bound ? step - bound : 0;
  }
};

static_assert(ExchangingPolicy<StaleSynchronous>);

}  // namespace stagger::staleness
