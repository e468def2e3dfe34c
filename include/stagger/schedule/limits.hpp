// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Limits on the activations that a rank holds at once.

#include <stagger/schedule/action.hpp>

namespace stagger::schedule {

/// The most that a rank may hold. A table that obeys limits must only be compared with a bound that
/// was computed for the same limits.
struct Limits {
  int in_flight = 0;  ///< most (stage, microbatch) pairs from F to W; 0: no limit
  double memory = 0;  ///< activations, 1 from F to I, `weight_share` from I to W; 0: no limit
  double weight_share = 0.5;  ///< 0 to 1
};

namespace detail {

/// What one rank holds while its actions run.
struct Occupancy {
  double held = 0;
  int live = 0;

  /// Whether there is room for one more forward.
  [[nodiscard]] constexpr bool takes(Limits const& limits) const noexcept {
    return (limits.in_flight == 0 || live < limits.in_flight) &&
           (limits.memory == 0 || held + 1 <= limits.memory + 1e-9);
  }

  constexpr void run(Kind kind, Limits const& limits) noexcept {
    if (kind == Kind::forward) {
      held += 1;
      ++live;
    } else if (kind == Kind::backward_input) {
      held -= 1 - limits.weight_share;
    } else if (kind == Kind::backward) {
      held -= 1;
      --live;
    } else if (kind == Kind::backward_weight) {
      held -= limits.weight_share;
      --live;
    }
  }
};

}  // namespace detail
}  // namespace stagger::schedule
