// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Forward only: evaluation and inference, on the mapping of any schedule.

#include <algorithm>
#include <tuple>

#include <stagger/schedule/detail/greedy.hpp>
#include <stagger/schedule/legal.hpp>
#include <stagger/schedule/mapping.hpp>
#include <stagger/schedule/policy.hpp>

namespace stagger::schedule {

/// Every microbatch passes every stage once, in groups of P that follow each other as in the
/// interleaved schedule. On a loop the bubble is (P - 1)F of one chunk for M >= P.
struct ForwardOnly {
  using policy_tag = ScheduleTag;
  static constexpr bool flushes = true;

  int chunks_per_rank = 1;            ///< V >= 1
  Mapping mapping = Mapping::looped;  ///< as the schedule that trains the same model

  [[nodiscard]] constexpr int chunks() const noexcept { return chunks_per_rank; }

  /// @param shape  any P, M and V; for the bidirectional mapping P and M even, V = 1
  /// @throws Error bad_configuration
  [[nodiscard]] constexpr Table table(Shape shape) const {
    require_counts("forward-only", shape, chunks_per_rank);
    int const P = shape.ranks, M = shape.microbatches;
    if (mapping == Mapping::bidirectional) require_bidirectional("forward-only", shape);
    int const groups = std::max(1, M / P);  // the last one takes the remainder, too
    auto const key = [P, groups](detail::Candidate const& c) {
      return std::tuple(std::min(c.microbatch / P, groups - 1), c.part->stage, c.microbatch);
    };
    return detail::greedy(detail::stage_parts(mapping, shape, 0), shape, Costs{},
                          detail::Backwards::none, key);
  }
};

template <> inline constexpr std::string_view catalog_name<ForwardOnly> = "forward-only";

}  // namespace stagger::schedule
