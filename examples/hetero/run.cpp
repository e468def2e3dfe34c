// SPDX-License-Identifier: Apache-2.0
#include "run.hpp"

#include <algorithm>
#include <utility>

namespace hetero {

namespace {

using stagger::schedule::Kind;
using stagger::schedule::Span;

using Interval = std::pair<double, double>;

/// When some stage was at work, in order and apart from each other.
std::vector<Interval> busy(stagger::schedule::Timeline const& timeline) {
  std::vector<Interval> all;
  for (auto const& row : timeline.rows)
    for (Span const& span : row)
      if (stagger::schedule::is_compute(span.action.kind))
        all.emplace_back(span.start_s, span.end_s);
  std::sort(all.begin(), all.end());
  std::vector<Interval> merged;
  for (Interval const& each : all)
    if (merged.empty() || each.first > merged.back().second)
      merged.push_back(each);
    else
      merged.back().second = std::max(merged.back().second, each.second);
  return merged;
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
  for (Span const& span : exchanges(worker)) {
    ++result.pushes;
    if (span.end_s >= result.end_s) continue;  // no minibatch needs it any more
    result.waiting_s += span.end_s - span.start_s;
    result.idle_s += span.end_s - span.start_s - covered_s({span.start_s, span.end_s}, work);
  }
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
