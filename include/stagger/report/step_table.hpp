// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The table at the end of a run, which compares what the schedule allows with what was
///         measured.

#include <algorithm>
#include <string>
#include <vector>

#include <stagger/core/error.hpp>
#include <stagger/report/format.hpp>
#include <stagger/report/summary.hpp>
#include <stagger/report/table.hpp>

namespace stagger::report {

struct StepReport {
  Summary predicted;           ///< of the table, evaluated with the measured costs of the stages
  Summary measured;            ///< of a measured iteration, or of one that is typical of the run
  double measured_step_s = 0;  ///< wall time of a whole step with its optimizer; 0: not measured
};

namespace detail {

/// The peaks of a few ranks, "4 3 2 1", or the highest one of many, "64 (rank 0)".
[[nodiscard]] inline std::string peaks(std::vector<int> const& peak) {
  if (peak.empty()) return "-";
  if (peak.size() > 8) {
    auto const most = std::max_element(peak.begin(), peak.end());
    return std::to_string(*most) + " (rank " + std::to_string(most - peak.begin()) + ")";
  }
  std::string all;
  for (int const one : peak) all += text(all.empty() ? "" : " ", one);
  return all;
}

/// The relative change, such as "+4.9 %"; "-" if `from` is not positive.
[[nodiscard]] inline std::string change(double from, double to) {
  if (!(from > 0)) return "-";
  double const share = to / from - 1;
  return text(share >= 0 ? "+" : "", format_percent(share));
}

}  // namespace detail

/// A table of step time, makespan, bubble, span bubble and peak in flight, as the schedule allows
/// them and as they were measured.
[[nodiscard]] inline std::string step_table(StepReport const& report) {
  Summary const& p = report.predicted;
  Summary const& m = report.measured;
  TextTable table({"", "schedule allows", "measured", "difference"});
  auto const times = [&](char const* what, double predicted_s, double measured_s) {
    table.add({what, format_seconds(predicted_s), format_seconds(measured_s),
               detail::change(predicted_s, measured_s)});
  };
  if (report.measured_step_s > 0) times("step time", p.makespan_s, report.measured_step_s);
  times("makespan", p.makespan_s, m.makespan_s);
  times("work of the busiest rank", p.busiest_work_s(), m.busiest_work_s());
  times("bubble", p.bubble_s, m.bubble_s);
  times("span bubble", p.span_bubble_s, m.span_bubble_s);
  table.add({"bubble, share of makespan", format_percent(p.bubble_share()),
             format_percent(m.bubble_share())});
  table.add({"peak in flight, per rank", detail::peaks(p.peak_in_flight),
             detail::peaks(m.peak_in_flight)});
  return table.str();
}

}  // namespace stagger::report
