// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Asynchronous parallelism: no worker waits for another.

#include <stagger/staleness/policy.hpp>

namespace stagger::staleness {

/// Each worker pushes the gradients of a step, or the changes that its own optimizer makes of them,
/// and continues with the weights that the server has then. They contain all of the worker's own
/// pushes; any number of the others' may be missing.
struct Asynchronous {
  using policy_tag = StalenessTag;
  static constexpr bool synchronous = true;  // the stages of a worker end a step together
  static constexpr Adds adds = Adds::on_arrival;
  Pushes pushes = Pushes::gradients;  ///< or changes
  [[nodiscard]] constexpr int minibatches() const noexcept { return 1; }
  [[nodiscard]] constexpr int needs(int) const noexcept { return 0; }
};

static_assert(ExchangingPolicy<Asynchronous>);

}  // namespace stagger::staleness
