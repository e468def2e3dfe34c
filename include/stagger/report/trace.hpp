// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Timelines as a trace file that opens in Perfetto (ui.perfetto.dev) and chrome://tracing.
/// @source "Trace Event Format", Chrome; the limits that Perfetto's importer adds are kept as well.

#include <algorithm>
#include <array>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include <stagger/report/detail/blocks.hpp>
#include <stagger/report/detail/trace_writer.hpp>
#include <stagger/schedule/timeline.hpp>

namespace stagger::report {

/// One process of a trace: the iterations of one pipeline, for instance predicted or measured.
struct TraceGroup {
  std::string_view name;                      ///< of the process; empty: "stagger"
  std::span<schedule::Timeline const> steps;  ///< iterations, each from when the last one ended
  long long first_step = 0;                   ///< number of the first iteration
};

/// A trace of several groups side by side, one process each.
///
/// Each rank is one track. Its actions are slices named as in the tables (`0F3`); where a group has
/// several iterations, a slice "step n" encloses those of each. An arrow leads from F(s, m) to
/// F(s+1, m) and from B or I (s, m) to B or I (s-1, m) wherever the two run on different ranks; a
/// counter for each rank shows the microbatches in flight. Messages, and exchanges with a
/// parameter server, stand on tracks of their own below their rank. The slice of layers that
/// several ranks share has `Span::exchange_s` as argument `exchange_us`. Times are microseconds,
/// exact to the nanosecond; an action shorter than that is shown a nanosecond long, because a slice
/// without length would neither nest nor carry an arrow.
///
/// @throws Error  bad_data for a time that is not finite or an end before its start
/// @complexity    O(actions log actions) of one iteration
[[nodiscard]] inline std::string perfetto(std::span<TraceGroup const> groups) {
  bool several = false;
  for (TraceGroup const& group : groups) {
    for (schedule::Timeline const& timeline : group.steps) detail::require_times(timeline);
    several = several || group.steps.size() > 1;
  }
  detail::TraceWriter writer(several);
  for (TraceGroup const& group : groups) {
    int ranks = 0;
    for (auto const& timeline : group.steps) ranks = std::max(ranks, timeline.ranks());
    writer.process(group.name.empty() ? "stagger" : group.name, ranks);
    long long number = group.first_step;
    for (auto const& timeline : group.steps) writer.step(timeline, number++);
  }
  return std::move(writer).document();
}

/// A trace of one pipeline's iterations, one after the other.
[[nodiscard]] inline std::string perfetto(std::span<schedule::Timeline const> steps) {
  TraceGroup const group{{}, steps};
  return perfetto(std::span{&group, 1});
}

/// A trace of one iteration.
[[nodiscard]] inline std::string perfetto(schedule::Timeline const& timeline) {
  return perfetto(std::span{&timeline, 1});
}

/// A trace of two timelines of the same iteration side by side: process "predicted" above process
/// "measured".
[[nodiscard]] inline std::string perfetto(schedule::Timeline const& predicted,
                                          schedule::Timeline const& measured) {
  std::array<TraceGroup, 2> const groups{TraceGroup{"predicted", {&predicted, 1}},
                                         TraceGroup{"measured", {&measured, 1}}};
  return perfetto(std::span<TraceGroup const>{groups});
}

}  // namespace stagger::report
