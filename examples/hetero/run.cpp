// SPDX-License-Identifier: Apache-2.0
#include "run.hpp"

#include <algorithm>
#include <utility>

namespace hetero {

namespace {

using stagger::schedule::Kind;
using stagger::schedule::Span;

using Interval = std::pair<double, double>;

/// The same time as intervals in order and apart from each other.
std::vector<Interval> merged(std::vector<Interval> all) {
  std::sort(all.begin(), all.end());
  std::vector<Interval> result;
  for (Interval const& each : all)
    if (result.empty() || each.first > result.back().second)
      result.push_back(each);
    else
      result.back().second = std::max(result.back().second, each.second);
  return result;
}

/// When some stage was at work.
std::vector<Interval> busy(stagger::schedule::Timeline const& timeline) {
  std::vector<Interval> all;
  for (auto const& row : timeline.rows)
    for (Span const& span : row)
      if (stagger::schedule::is_compute(span.action.kind))
        all.emplace_back(span.start_s, span.end_s);
  return merged(std::move(all));
}

/// At each stage, from when a minibatch that needs new weights could have begun until it had them.
/// It could have when the stage before had passed it on; at the first stage, when there was room for
/// it in the pipeline, or all of the step before had come back.
std::vector<Interval> waits(WorkerRun const& worker) {
  std::vector<Interval> all;
  auto const& rows = worker.timeline.rows;
  std::vector<double> came_back_s(worker.losses.size());
  std::vector<double> passed_s(worker.losses.size());  // by the stage before
  double last_s = 0;                                   // when the last one came back
  for (std::size_t stage = 0; stage < rows.size(); ++stage) {
    double pulled_s = -1;
    for (Span const& span : rows[stage]) {
      auto const m = static_cast<std::size_t>(span.action.microbatch);
      if (span.action.kind == Kind::pull) pulled_s = span.start_s;
      if (span.action.kind == Kind::backward) came_back_s[m] = last_s = span.end_s;
      if (span.action.kind != Kind::forward) continue;
      if (stage == 0 && worker.in_flight != 0)
        passed_s[m] = m < worker.in_flight ? 0 : came_back_s[m - worker.in_flight];
      else if (stage == 0)
        passed_s[m] = last_s;
      if (pulled_s > passed_s[m]) all.emplace_back(passed_s[m], pulled_s);
      pulled_s = -1;
      passed_s[m] = span.end_s;
      if (stage < worker.transfers_s.size()) passed_s[m] += worker.transfers_s[stage];
    }
  }
  return all;
}

/// How much of an interval others cover.
double covered_s(Interval const& interval, std::vector<Interval> const& by) {
  double sum_s = 0;
  auto at = std::lower_bound(by.begin(), by.end(), interval.first,
                             [](Interval const& each, double t) { return each.second <= t; });
  for (; at != by.end() && at->first < interval.second; ++at)
    sum_s += std::min(at->second, interval.second) - std::max(at->first, interval.first);
  return sum_s;
}

}  // namespace

std::vector<Span> exchanges(WorkerRun const& worker) {
  std::vector<Span> all;
  if (worker.timeline.rows.empty()) return all;
  bool open = false;
  for (Span const& span : worker.timeline.rows.front()) {
    if (span.action.kind == Kind::push) {
      all.push_back(span);
      open = true;
    } else if (span.action.kind == Kind::pull && std::exchange(open, false)) {
      all.back().end_s = span.start_s;
    }
  }
  return all;
}

Spent spent(WorkerRun const& worker) {
  Spent result;
  auto const work = busy(worker.timeline);
  if (!work.empty()) result.end_s = work.back().second;
  for (Interval const& each : merged(waits(worker))) {
    result.waiting_s += each.second - each.first;
    result.idle_s += each.second - each.first - covered_s(each, work);
  }
  result.pushes = static_cast<int>(exchanges(worker).size());
  return result;
}

std::vector<LossPoint> loss_curve(Run const& run, std::size_t window) {
  std::vector<LossPoint> all;
  for (WorkerRun const& worker : run.workers) {
    if (worker.timeline.rows.empty()) continue;
    for (Span const& span : worker.timeline.rows.back())  // where the loss is computed
      if (span.action.kind == Kind::backward)
        all.push_back(
            {span.end_s, worker.losses[static_cast<std::size_t>(span.action.microbatch)]});
  }
  std::sort(all.begin(), all.end(), [](LossPoint const& a, LossPoint const& b) {
    return std::pair(a.time_s, a.loss) < std::pair(b.time_s, b.loss);
  });
  std::vector<LossPoint> curve;
  double sum = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    sum += all[i].loss;
    if (i >= window) sum -= all[i - window].loss;
    if (i + 1 >= window) curve.push_back({all[i].time_s, sum / static_cast<double>(window)});
  }
  return curve;
}

std::optional<double> reached_s(std::vector<LossPoint> const& curve, double target) {
  for (LossPoint const& point : curve)
    if (point.loss <= target) return point.time_s;
  return std::nullopt;
}

}  // namespace hetero
