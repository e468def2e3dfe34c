// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The figures of a timeline, predicted or measured: makespan, work, bubble, micro-batches
///         in flight, cost of each stage.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <stagger/core/error.hpp>
#include <stagger/report/detail/blocks.hpp>
#include <stagger/schedule/costs.hpp>
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
  result.makespan_s = detail::extent(timeline).length_s();
  for (auto const& row : timeline.rows) {
    double work = 0;
    int live = 0;
    int peak = 0;
    bool frees = false;  // a backward that opens a pair frees only after the pair's F counted
    detail::for_each_block(row, [&](detail::Block const& block) {
      if (!schedule::is_compute(block.action.kind)) return;
      bool const ends = schedule::ends_flight(block.action.kind);
      if (block.half != detail::Half::second) work += block.end_s - block.start_s;
      if (block.action.kind == schedule::Kind::forward && !block.repeated)
        peak = std::max(peak, ++live);
      if (block.half == detail::Half::first) {
        frees = ends;
      } else {
        live -=
            static_cast<int>(ends) + static_cast<int>(block.half == detail::Half::second && frees);
      }
    });
    result.work_s.push_back(work);
    result.span_s.push_back(detail::extent(row).length_s());
    result.peak_in_flight.push_back(peak);
    result.longest_span_s = std::max(result.longest_span_s, result.span_s.back());
  }
  auto const beyond_work = [&](double time_s) {
    double const rest = time_s - result.busiest_work_s();
    return std::fabs(rest) <= 1e-12 * time_s ? 0 : rest;  // sums of rounded times
  };
  result.bubble_s = beyond_work(result.makespan_s);
  result.span_bubble_s = beyond_work(result.longest_span_s);
  return result;
}

/// Samples of one kind of action at one stage, per microbatch (its slices added up).
struct ActionCost {
  std::size_t count = 0;  ///< microbatches measured; 0 where the kind did not run
  double mean_s = 0;
  double median_s = 0;
};

/// Measured costs of one stage, seconds per microbatch.
struct MeasuredStage {
  ActionCost forward;          ///< F
  ActionCost backward;         ///< B, full backward
  ActionCost backward_input;   ///< I
  ActionCost backward_weight;  ///< W
};

/// Costs of every stage, pooled over several iterations. Overlapped pairs are left out: their parts
/// cannot be told apart.
///
/// @return       [stages], as many as the largest stage index asks for
/// @throws Error bad_data for a time that is not finite, an end before its start, or a negative
///               stage
[[nodiscard]] inline std::vector<MeasuredStage> measure_stages(
    std::span<schedule::Timeline const> steps) {
  using Unit = std::tuple<int, schedule::Kind, std::size_t, int>;  // stage, kind, step, microbatch
  std::map<Unit, double> samples;
  int stages = 0;
  for (std::size_t step = 0; step < steps.size(); ++step) {
    detail::require_times(steps[step]);
    for (auto const& row : steps[step].rows) {
      double repeated_s = 0;  // a forward that is run again is a cost of the backward after it
      detail::for_each_block(row, [&](detail::Block const& block) {
        if (!schedule::is_compute(block.action.kind)) return;
        if (block.repeated) {
          repeated_s += block.end_s - block.start_s;
          return;
        }
        if (block.action.stage < 0) {
          raise(Errc::bad_data, "stage ", block.action.stage,
                " in a timeline; count stages from 0");
        }
        stages = std::max(stages, block.action.stage + 1);
        if (block.half != detail::Half::none) return;
        double cost_s = block.end_s - block.start_s;
        if (schedule::gives_input_gradient(block.action.kind))
          cost_s += std::exchange(repeated_s, 0);
        samples[{block.action.stage, block.action.kind, step, block.action.microbatch}] += cost_s;
      });
    }
  }
  std::vector<MeasuredStage> result(static_cast<std::size_t>(stages));
  std::vector<double> values;
  for (auto it = samples.begin(); it != samples.end();) {
    auto const [stage, kind, step, microbatch] = it->first;
    values.clear();
    for (; it != samples.end() && std::get<0>(it->first) == stage && std::get<1>(it->first) == kind;
         ++it) {
      values.push_back(it->second);
    }
    double sum = 0;
    for (double const value : values) sum += value;
    std::sort(values.begin(), values.end());
    std::size_t const n = values.size();
    MeasuredStage& to = result[static_cast<std::size_t>(stage)];
    ActionCost& cost = kind == schedule::Kind::forward          ? to.forward
                       : kind == schedule::Kind::backward       ? to.backward
                       : kind == schedule::Kind::backward_input ? to.backward_input
                                                                : to.backward_weight;
    cost = {n, sum / static_cast<double>(n), (values[(n - 1) / 2] + values[n / 2]) / 2};
  }
  return result;
}

/// Measured costs in the form that `schedule::evaluate` takes, to see what the schedule allows for
/// these stages: medians, which a few late samples do not move.
///
/// Where only the full backward was measured it is given as two equal halves, I and W: their sum is
/// all that a table of full backwards reads. Transfers are 0: on the host a message costs what its
/// action costs.
[[nodiscard]] inline schedule::Costs measured_costs(std::span<schedule::Timeline const> steps) {
  schedule::Costs costs;
  for (MeasuredStage const& stage : measure_stages(steps)) {
    bool const split = stage.backward_input.count + stage.backward_weight.count > 0;
    double const half = stage.backward.median_s / 2;
    schedule::StageCosts one;
    one.forward_s = stage.forward.median_s;
    one.backward_input_s = split ? stage.backward_input.median_s : half;
    one.backward_weight_s = split ? stage.backward_weight.median_s : half;
    one.transfer_s = 0;
    costs.stages.push_back(one);
  }
  return costs;
}

}  // namespace stagger::report
