// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The figures of a timeline, predicted or measured: makespan, work, bubble, microbatches
///         in flight, cost of each stage.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <map>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include <stagger/core/error.hpp>
#include <stagger/report/detail/blocks.hpp>
#include <stagger/schedule/costs.hpp>
#include <stagger/schedule/proof/peak_in_flight.hpp>
#include <stagger/schedule/timeline.hpp>

namespace stagger::report {

/// The figures of a timeline. Only compute actions count as work; reductions of gradients count for
/// the makespan and the spans as well; messages count for neither.
struct Summary {
  double makespan_s = 0;       ///< first start to last end over all ranks, seconds
  double longest_span_s = 0;   ///< longest time from a rank's first start to its last end, seconds
  double bubble_s = 0;         ///< makespan - work of the busiest rank, seconds
  double span_bubble_s = 0;    ///< longest span - work of the busiest rank, seconds
  std::vector<double> work_s;  ///< [ranks] seconds spent in compute actions; a pair counts once
  std::vector<double> span_s;  ///< [ranks] first start to last end, seconds
  std::vector<int> peak_in_flight;  ///< [ranks] most (stage, microbatch, slice) whose F has run and
                                    ///< whose B or W has not

  /// Work of the busiest rank, seconds.
  [[nodiscard]] double busiest_work_s() const {
    return work_s.empty() ? 0 : *std::max_element(work_s.begin(), work_s.end());
  }
  /// `bubble_s` as a share of the makespan, 0 to 1.
  [[nodiscard]] double bubble_share() const { return makespan_s > 0 ? bubble_s / makespan_s : 0; }
};

/// Computes the figures of one iteration.
///
/// @throws Error bad_data for a time that is not finite or an end before its start
/// @complexity   O(actions)
[[nodiscard]] inline Summary summarize(schedule::Timeline const& timeline) {
  detail::require_times(timeline);
  Summary result;
  result.makespan_s = detail::extent(timeline.spans).length_s();
  for (int r = 0; r < timeline.ranks(); ++r) {
    auto const row = timeline.row(r);
    double work = 0;
    int peak = 0;
    schedule::detail::LiveCount count;
    detail::for_each_block(row, [&](detail::Block const& block) {
      if (!schedule::is_compute(block.action.kind)) return;
      if (block.half != detail::Half::second) work += block.end_s - block.start_s;
      if (!block.repeated) peak = std::max(peak, count.run(block.action));
    });
    result.work_s.push_back(work);
    result.span_s.push_back(detail::extent(row).length_s());
    result.peak_in_flight.push_back(peak);
    result.longest_span_s = std::max(result.longest_span_s, result.span_s.back());
  }
  auto const beyond_work = [&](double time_s) {
    double const rest = time_s - result.busiest_work_s();
    return std::fabs(rest) <= 1e-12 * time_s ? 0 : rest;  // a difference of rounded sums
  };
  result.bubble_s = beyond_work(result.makespan_s);
  result.span_bubble_s = beyond_work(result.longest_span_s);
  return result;
}

/// Measured costs as input of `schedule::evaluate`, which computes the best that the schedule
/// allows for these stages: of each kind of action at each stage the median over all microbatches
/// of several iterations, which a few late samples do not move. Slices of a microbatch are added
/// up; overlapped pairs are left out, since their parts cannot be told apart.
///
/// If only the full backward was measured, it is divided into two equal halves, I and W; a table of
/// full backwards uses only their sum. Transfers are 0: on the host a message costs what its action
/// costs.
/// @return       costs of as many stages as the largest stage index requires
/// @throws Error bad_data for a time that is not finite, an end before its start, or a negative
///               stage
[[nodiscard]] inline schedule::Costs measured_costs(std::span<schedule::Timeline const> steps) {
  using schedule::Kind;
  std::map<std::tuple<int, Kind, std::size_t, int>, double> samples;  // stage, step, microbatch
  int stages = 0;
  for (std::size_t step = 0; step < steps.size(); ++step) {
    detail::require_times(steps[step]);
    for (int r = 0; r < steps[step].ranks(); ++r) {
      double repeated_s = 0;  // a forward that is run again is a cost of the backward after it
      detail::for_each_block(steps[step].row(r), [&](detail::Block const& block) {
        schedule::Action const& a = block.action;
        if (!schedule::is_compute(a.kind)) return;
        double cost_s = block.end_s - block.start_s;
        if (block.repeated) {
          repeated_s += cost_s;
          return;
        }
        if (a.stage < 0)
          raise(Errc::bad_data, "a timeline has stage ", a.stage, "; count stages from 0");
        stages = std::max(stages, a.stage + 1);
        if (block.half != detail::Half::none) return;
        if (schedule::gives_input_gradient(a.kind)) cost_s += std::exchange(repeated_s, 0);
        samples[{a.stage, a.kind, step, a.microbatch}] += cost_s;
      });
    }
  }
  auto const median = [&](int stage, Kind kind) {
    std::vector<double> values;
    for (auto it = samples.lower_bound({stage, kind, 0, std::numeric_limits<int>::min()});
         it != samples.end() && std::get<0>(it->first) == stage && std::get<1>(it->first) == kind;
         ++it)
      values.push_back(it->second);
    std::sort(values.begin(), values.end());
    std::size_t const n = values.size();
    return n == 0 ? 0 : (values[(n - 1) / 2] + values[n / 2]) / 2;
  };
  schedule::Costs costs;
  for (int s = 0; s < stages; ++s) {
    double const half_s = median(s, Kind::backward) / 2;
    double const input_s = median(s, Kind::backward_input);
    double const weight_s = median(s, Kind::backward_weight);
    bool const split = input_s + weight_s > 0;
    costs.stages.push_back({.forward_s = median(s, Kind::forward),
                            .backward_input_s = split ? input_s : half_s,
                            .backward_weight_s = split ? weight_s : half_s});
  }
  return costs;
}

}  // namespace stagger::report
