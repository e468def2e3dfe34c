// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   What workers that train one model through a parameter server tell it, in the words that
///         staleness models and servers share.

#include <stagger/core/requirements.hpp>

#include <cstdint>

namespace stagger::staleness {

/// What a worker pushes.
enum class Pushes : std::uint8_t {
  gradients,  ///< the optimizer and its state stand with the server
  changes,    ///< what the worker's own optimizer would add to the weights that the minibatch saw
  weights,    ///< as the worker's own steps have made them; the server takes the mean
  weights_and_state,  ///< likewise with the state of the worker's optimizer
};
[[nodiscard]] constexpr bool averages(Pushes pushes) noexcept { return pushes >= Pushes::weights; }

/// When the server adds what workers push.
enum class Adds : std::uint8_t {
  on_arrival,       ///< at once; the bits depend on who comes first
  in_worker_order,  ///< a round once every worker's push of it is there; the same bits for any timing
  in_turn,          ///< one worker after the other, waiting for the one whose turn it is
};

}  // namespace stagger::staleness
