// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Hanayo: microbatches pass the ranks in waves, down and up again.
/// @source Liu et al., "Hanayo", arXiv 2308.15762.

#include <algorithm>
#include <limits>
#include <tuple>

#include <stagger/schedule/detail/greedy.hpp>
#include <stagger/schedule/legal.hpp>
#include <stagger/schedule/policy.hpp>

namespace stagger::schedule {

/// Two chunks for each wave: chunks 0, 2, .. run down the ranks, chunks 1, 3, .. up. At B = F the
/// bubble is (P - 1)(F + B) of one chunk, for every number of waves; at most P microbatches are in
/// flight.
struct Hanayo {
  using policy_tag = ScheduleTag;
  static constexpr bool flushes = true;

  int waves = 1;  ///< V / 2

  /// Stages on each rank, two for each wave.
  [[nodiscard]] constexpr int chunks() const noexcept {
    constexpr int most = std::numeric_limits<int>::max() / 2;  // too many for any table
    return 2 * std::clamp(waves, 0, most);
  }

  /// @param shape  M a multiple of P, V = 2 waves
  /// @throws Error bad_configuration
  [[nodiscard]] constexpr Table table(Shape shape) const {
    require(waves >= 1, "hanayo", Count::chunks, chunks(), 2, "a wave has two");
    require_counts("hanayo", shape, chunks());
    int const P = shape.ranks, M = shape.microbatches;
    require(M % P == 0, "hanayo", Count::microbatches, M, std::max(P, (M + P / 2) / P * P),
            "a wave carries P of them");
    // Backwards before forwards, the older microbatch first, and of one microbatch the highest
    // stage.
    auto const key = [](detail::Candidate const& c) {
      return std::tuple(c.kind == Kind::forward, c.microbatch, -c.part->stage);
    };
    return detail::greedy(detail::stage_parts(Mapping::zigzag, shape, P), shape,
                          Costs::uniform(1, 0.5, 0.5), detail::Backwards::whole, key);
  }
};

template <> inline constexpr std::string_view catalog_name<Hanayo> = "hanayo";

}  // namespace stagger::schedule
