// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Forward only: evaluation and inference, on the mapping of any schedule.

#include <algorithm>
#include <cstdint>
#include <tuple>
#include <vector>

#include <stagger/schedule/detail/greedy.hpp>
#include <stagger/schedule/legal.hpp>
#include <stagger/schedule/policy.hpp>

namespace stagger::schedule {

/// Which rank runs which stage.
enum class Mapping : std::uint8_t {
  looped,         ///< stage s on rank s mod P
  zigzag,         ///< chunks run down and up the ranks in turn; with two chunks a V
  bidirectional,  ///< one chunk; microbatches of the second half run stage s on rank P - 1 - s
};

/// Every microbatch passes every stage once, in groups of P that follow each other as in the
/// interleaved schedule. On a loop the bubble is (P - 1)F of one chunk for M >= P.
struct ForwardOnly {
  using policy_tag = ScheduleTag;
  static constexpr bool flushes = true;
  static constexpr bool proven = true;

  int chunks_per_rank = 1;            ///< V >= 1
  Mapping mapping = Mapping::looped;  ///< as the schedule that trains the same model

  /// Stages on each rank, V.
  [[nodiscard]] constexpr int chunks() const noexcept { return chunks_per_rank; }

  /// @param shape  any P, M and V; for the bidirectional mapping P and M even, V = 1
  /// @throws Error bad_configuration
  [[nodiscard]] constexpr Table table(Shape shape) const {
    require_counts("forward-only", shape, chunks_per_rank);
    int const P = shape.ranks, M = shape.microbatches;
    std::vector<detail::Lane> lanes;
    if (mapping == Mapping::bidirectional) {
      require(shape.chunks == 1, "forward-only", Count::chunks, shape.chunks, 1,
              "the bidirectional mapping has one");
      require(P % 2 == 0, "forward-only", Count::ranks, P, P + 1,
              "ranks pair up from both ends, so their number is even");
      require(M % 2 == 0, "forward-only", Count::microbatches, M, M + 1,
              "half of them enter at each end, so their number is even");
      detail::add_lanes(lanes, P, 0, M / 2, 0, [](int s) { return s; });
      detail::add_lanes(lanes, P, M / 2, M, 0, [P](int s) { return P - 1 - s; });
    } else {
      bool const turns = mapping == Mapping::zigzag;
      detail::add_lanes(lanes, shape.stages(), 0, M, 0, [P, turns](int s) {
        return turns && s / P % 2 == 1 ? P - 1 - s % P : s % P;
      });
    }
    int const groups =
        std::max(1, M / P);  // of P microbatches; the last one takes the remainder with it
    auto const better = [P, groups](detail::Candidate const& a, detail::Candidate const& b,
                                    std::vector<detail::Lane> const& all) {
      auto const key = [&](detail::Candidate const& c) {
        return std::tuple(std::min(c.microbatch / P, groups - 1), all[c.lane].stage, c.microbatch);
      };
      return key(a) < key(b);
    };
    return detail::greedy(lanes, shape, Costs{}, detail::Backwards::none, better);
  }
};

static_assert(SchedulePolicy<ForwardOnly>);
template <> inline constexpr std::string_view catalog_name<ForwardOnly> = "forward-only";

}  // namespace stagger::schedule
