// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Timelines as a trace file that opens in Perfetto (ui.perfetto.dev) and chrome://tracing.
/// @source "Trace Event Format", Chrome; the limits that Perfetto's importer adds are kept as well.

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include <stagger/core/error.hpp>
#include <stagger/report/detail/blocks.hpp>
#include <stagger/report/detail/trace_events.hpp>
#include <stagger/report/detail/trace_writer.hpp>
#include <stagger/report/format.hpp>
#include <stagger/schedule/timeline.hpp>

namespace stagger::report {

/// What a trace shows.
struct TraceOptions {
  std::string_view name = "stagger";  ///< name of a process whose group has none
  bool flows = true;                  ///< arrows for messages between ranks
  bool counters = true;               ///< a counter track per rank with the microbatches in flight
};

/// One process of a trace: the iterations of one pipeline, for instance predicted or measured.
struct TraceGroup {
  std::string_view name;                      ///< process name
  std::span<schedule::Timeline const> steps;  ///< iterations, in order
  /// [steps] when each iteration started, in seconds >= 0; empty: each when the one before it
  /// ended.
  std::span<double const> starts_s{};
  long long first_step = 0;  ///< number of the first iteration
};

/// Writes several groups side by side, one process each, through `sink`, in pieces of about 64 KiB.
///
/// Each rank is one track. Its actions are slices named as in the tables (`0F3`); where a group has
/// several iterations, a slice "step n" encloses those of each. An arrow leads from F(s, m) to
/// F(s+1, m) and from B or I (s, m) to B or I (s-1, m) wherever the two run on different ranks.
/// Messages that the timeline carries stand on tracks of their own below their rank. Times are
/// microseconds, exact to the nanosecond; an action shorter than that is shown a nanosecond long,
/// because a slice without length would neither nest nor carry an arrow.
///
/// @param  sink   callable with (std::string_view)
/// @throws Error  bad_data for a time that is not finite, an end before its start, or a count of
/// starts other than of steps
/// @complexity    O(actions log actions) of one iteration; memory for one iteration
template <class Sink>
  requires std::is_invocable_v<Sink&, std::string_view>
void perfetto(std::span<TraceGroup const> groups, Sink&& sink, TraceOptions const& options = {}) {
  using Target = std::remove_reference_t<Sink>;
  detail::TextSink const text{
      const_cast<std::remove_const_t<Target>*>(&sink),
      [](void* target, std::string_view piece) { (*static_cast<Target*>(target))(piece); }};
  for (TraceGroup const& group : groups) {  // all is checked before the first byte is written
    if (!group.starts_s.empty() && group.starts_s.size() != group.steps.size()) {
      raise(Errc::bad_data, "a trace has ", group.steps.size(), " steps but ",
            group.starts_s.size(), " starts; give one start per step or none");
    }
    for (double const start : group.starts_s) {
      if (start >= 0 && start <= 4e9) continue;
      raise(Errc::bad_data, "a step of a trace starts at ", format_shortest(start),
            " s; give seconds from 0 to 4e9");
    }
    for (schedule::Timeline const& timeline : group.steps) detail::require_times(timeline);
  }
  bool several = false;
  for (TraceGroup const& group : groups) several = several || group.steps.size() > 1;
  detail::TraceWriter writer(text, options.flows, options.counters, several);
  for (TraceGroup const& group : groups) {
    int ranks = 0;
    for (auto const& timeline : group.steps) ranks = std::max(ranks, timeline.ranks());
    writer.process(group.name.empty() ? options.name : group.name, ranks);
    for (std::size_t i = 0; i < group.steps.size(); ++i) {
      double const start_s = group.starts_s.empty() ? -1 : group.starts_s[i];
      writer.step(group.steps[i], group.first_step + static_cast<long long>(i), start_s);
    }
  }
  writer.finish();
}

/// The same as one string.
[[nodiscard]] inline std::string perfetto(std::span<TraceGroup const> groups,
                                          TraceOptions const& options = {}) {
  std::string result;
  perfetto(groups, [&result](std::string_view piece) { result += piece; }, options);
  return result;
}

/// A trace of one pipeline's iterations, one after the other.
[[nodiscard]] inline std::string perfetto(std::span<schedule::Timeline const> steps,
                                          TraceOptions const& options = {}) {
  std::array<TraceGroup, 1> const group{TraceGroup{options.name, steps}};
  return perfetto(std::span<TraceGroup const>{group}, options);
}

/// A trace of one iteration.
[[nodiscard]] inline std::string perfetto(schedule::Timeline const& timeline,
                                          TraceOptions const& options = {}) {
  return perfetto(std::span<schedule::Timeline const>{&timeline, 1}, options);
}

/// A trace of two timelines of the same iteration side by side: process "predicted" above process
/// "measured".
[[nodiscard]] inline std::string perfetto(schedule::Timeline const& predicted,
                                          schedule::Timeline const& measured,
                                          TraceOptions const& options = {}) {
  std::array<TraceGroup, 2> const groups{TraceGroup{"predicted", {&predicted, 1}},
                                         TraceGroup{"measured", {&measured, 1}}};
  return perfetto(std::span<TraceGroup const>{groups}, options);
}

}  // namespace stagger::report
