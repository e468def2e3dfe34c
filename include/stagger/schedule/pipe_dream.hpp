// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   PipeDream: 1F1B that never flushes; each rank keeps the weights of every minibatch in
///         flight.
/// @source Narayanan et al., "PipeDream", SOSP 2019, sections 3.2 and 3.3.

#include <algorithm>
#include <vector>

#include <stagger/schedule/early_backward.hpp>
#include <stagger/schedule/legal.hpp>
#include <stagger/schedule/policy.hpp>

namespace stagger::schedule {

/// A table covers a whole run: its M are the minibatches of the run, and the bubble is paid once,
/// not per iteration. Between the first and the last P - 1 of them no rank idles.
struct PipeDream {
  using policy_tag = ScheduleTag;
  static constexpr bool flushes = false;

  int in_flight = 0;  ///< most minibatches injected and not yet back; 0: P

  [[nodiscard]] constexpr int chunks() const noexcept { return 1; }

  /// Versions of its weights that a rank keeps: one for each minibatch it may hold, P - r without a
  /// limit.
  /// @pre 0 <= rank < shape.ranks
  [[nodiscard]] constexpr int weight_versions(Shape shape, int rank) const noexcept {
    int const limit = in_flight == 0 ? shape.ranks : in_flight;
    return std::min({shape.ranks - rank, limit, shape.microbatches});
  }

  /// @param shape  any P and M, V = 1
  /// @throws Error bad_configuration
  [[nodiscard]] constexpr Table table(Shape shape) const {
    require_counts("pipedream", shape, 1);
    require(in_flight >= 0, "pipedream", Count::in_flight, in_flight, 1,
            "at least one is injected");
    std::vector<int> count;
    for (int r = 0; r < shape.ranks; ++r) count.push_back(weight_versions(shape, r));
    return detail::early_backward(shape, count, 0, shape.ranks);
  }
};

template <> inline constexpr std::string_view catalog_name<PipeDream> = "pipedream";

}  // namespace stagger::schedule
