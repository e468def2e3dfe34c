// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Fifo: each rank runs what became ready first, with a bounded number of microbatches in
///         the pipeline.
/// @source Park et al., "HetPipe", USENIX ATC 2020, section 4: what a stage does next.

#include <algorithm>
#include <tuple>

#include <stagger/schedule/detail/greedy.hpp>
#include <stagger/schedule/legal.hpp>
#include <stagger/schedule/policy.hpp>

namespace stagger::schedule {

/// At most Nm microbatches are injected and not yet back; forwards and backwards of a rank keep
/// microbatch order and otherwise run in order of readiness, ties backward first, then the lower
/// microbatch. The last stage runs forward and backward of a microbatch as one. The given
/// costs say when an action becomes ready, so that the order can be written down as a table.
struct Fifo {
  using policy_tag = ScheduleTag;
  static constexpr bool flushes = false;
  static constexpr bool proven = true;

  int in_flight = 0;  ///< Nm >= 1; 0: one for each rank
  Costs costs{};      ///< for each stage, or the same for all

  /// One stage on each rank.
  [[nodiscard]] constexpr int chunks() const noexcept { return 1; }

  /// Versions of its weights that a rank keeps: each of the Nm microbatches in the pipeline may
  /// have entered with another version, which it then sees at every stage.
  [[nodiscard]] constexpr int weight_versions(Shape shape, int) const noexcept {
    return std::min(in_flight == 0 ? shape.ranks : in_flight, shape.microbatches);
  }

  /// @param shape  any P and M, V = 1
  /// @throws Error bad_configuration, bad_data for costs that are not finite and not negative
  [[nodiscard]] constexpr Table table(Shape shape) const {
    require_counts("fifo", shape, 1);
    require(in_flight >= 0, "fifo", Count::in_flight, in_flight, 1, "at least one is injected");
    require_costs(costs, shape.ranks);
    auto const key = [last = shape.ranks - 1](detail::Candidate const& c) {
      bool const fused = c.kind == Kind::backward && c.part->stage == last;
      return std::tuple(fused ? -1.0 : c.ready_s, c.kind == Kind::forward, c.microbatch);
    };
    int const window = in_flight == 0 ? shape.ranks : in_flight;
    return detail::greedy(detail::stage_parts(Mapping::looped, shape, window), shape, costs,
                          detail::Backwards::whole, key);
  }
};

static_assert(SchedulePolicy<Fifo>);
template <> inline constexpr std::string_view catalog_name<Fifo> = "fifo";

}  // namespace stagger::schedule
