// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Round-robin synchronous parallelism: workers push one after the other.
/// @source Chen et al., "Round-Robin Synchronization: Mitigating Communication Bottlenecks in
///         Parameter Servers", INFOCOM 2019.

#include <stagger/staleness/policy.hpp>

namespace stagger::staleness {

/// The server adds the pushes of workers 0, 1, ... in turn and waits for the one whose turn it is.
/// After its own push a worker continues with the weights that the server has then. So from the
/// second round on, a gradient is one update late for each other worker. The bits do not depend on
/// timing.
struct RoundRobinSynchronous {
  using policy_tag = StalenessTag;
  static constexpr bool synchronous = true;  // the stages of a worker end a step together
  static constexpr Pushes pushes = Pushes::gradients;
  static constexpr Adds adds = Adds::in_turn;
  [[nodiscard]] constexpr int minibatches() const noexcept { return 1; }
  [[nodiscard]] constexpr int needs(int) const noexcept { return 0; }
};

static_assert(ExchangingPolicy<RoundRobinSynchronous>);

}  // namespace stagger::staleness
