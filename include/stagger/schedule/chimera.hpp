// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Chimera: two pipelines in opposite directions over the same ranks.
/// @source Li and Hoefler, "Chimera", arXiv 2107.06925, section 3. More microbatches than ranks
/// follow each other as
///         in the paper's direct concatenation: at most P/2 of a direction are in flight.

#include <tuple>
#include <vector>

#include <stagger/schedule/detail/greedy.hpp>
#include <stagger/schedule/legal.hpp>
#include <stagger/schedule/policy.hpp>

namespace stagger::schedule {

/// Two replicas of the model: microbatches 0 to M/2 - 1 run stage s on rank s, the others on rank P
/// - 1 - s. For M = P the bubble is a fraction (P - 2) / (2M + P - 2) of the makespan at B = F and
/// (P - 2) / (3M/2 + P - 2) at B = 2F.
struct Chimera {
  using policy_tag = ScheduleTag;
  static constexpr bool flushes = true;
  static constexpr bool proven = true;

  /// P stages; each rank runs one in either direction.
  [[nodiscard]] constexpr int chunks() const noexcept { return 1; }

  /// @param shape  P and M even, V = 1
  /// @throws Error bad_configuration
  [[nodiscard]] constexpr Table table(Shape shape) const {
    require_counts("chimera", shape, 1);
    int const P = shape.ranks, M = shape.microbatches;
    require(P % 2 == 0, "chimera", Count::ranks, P, P + 1,
            "ranks pair up from both ends, so their number is even");
    require(M % 2 == 0, "chimera", Count::microbatches, M, M + 1,
            "half of them enter at each end, so their number is even");
    std::vector<detail::Lane> lanes;
    detail::add_lanes(lanes, P, 0, M / 2, P / 2, [](int s) { return s; });
    detail::add_lanes(lanes, P, M / 2, M, P / 2, [P](int s) { return P - 1 - s; });
    // Backwards first, those that free the most ranks before others; forwards that are nearest to
    // their end.
    auto const better = [](detail::Candidate const& a, detail::Candidate const& b,
                           std::vector<detail::Lane> const& all) {
      auto const key = [&](detail::Candidate const& c) {
        bool const forward = c.kind == Kind::forward;
        int const stage = all[c.lane].stage;
        return std::tuple(forward, forward ? -stage : stage, c.microbatch - all[c.lane].first,
                          c.lane);
      };
      return key(a) < key(b);
    };
    return detail::greedy(lanes, shape, Costs::uniform(1, 0.5, 0.5), detail::Backwards::whole,
                          better);
  }
};

static_assert(SchedulePolicy<Chimera>);
template <> inline constexpr std::string_view catalog_name<Chimera> = "chimera";

}  // namespace stagger::schedule
