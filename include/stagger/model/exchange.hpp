// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The terms that staleness models and parameter servers share: what workers push, and when
///         it is added.

#include <stagger/core/requirements.hpp>

#include <cstdint>

namespace stagger::staleness {

/// What a worker pushes.
enum class Pushes : std::uint8_t {
  gradients,  ///< the server has the optimizer and its state
  changes,    ///< what the worker's own optimizer would add to the weights that the minibatch saw
  weights,    ///< after local steps; the server takes the mean
  weights_and_state,  ///< likewise with the state of the worker's optimizer
};
[[nodiscard]] constexpr bool averages(Pushes pushes) noexcept { return pushes >= Pushes::weights; }

/// When the server adds what workers push.
enum class Adds : std::uint8_t {
  on_arrival,       ///< at once; the bits depend on which worker pushes first
  in_worker_order,  ///< a round, once every worker has pushed it; the bits do not depend on timing
  in_turn,          ///< one worker after the other, waiting for the one whose turn it is
};

}  // namespace stagger::staleness
