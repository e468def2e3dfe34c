// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Sets of time spans: their union, and the part of a span that others cover.

#include <stagger/core/requirements.hpp>

#include <algorithm>
#include <utility>
#include <vector>

namespace stagger::schedule {

/// Start and end, in seconds.
using Interval = std::pair<double, double>;

/// The intervals in rising order; those that overlap or touch are joined.
[[nodiscard]] inline std::vector<Interval> joined(std::vector<Interval> all) {
  std::sort(all.begin(), all.end());
  std::vector<Interval> result;
  for (Interval const& each : all)
    if (result.empty() || each.first > result.back().second)
      result.push_back(each);
    else
      result.back().second = std::max(result.back().second, each.second);
  return result;
}

/// Seconds of an interval that lie within others. @param by  as `joined` returns them
[[nodiscard]] inline double covered_s(Interval const& interval, std::vector<Interval> const& by) {
  double sum_s = 0;
  auto at = std::lower_bound(by.begin(), by.end(), interval.first,
                             [](Interval const& each, double t) { return each.second <= t; });
  for (; at != by.end() && at->first < interval.second; ++at)
    sum_s += std::min(at->second, interval.second) - std::max(at->first, interval.first);
  return sum_s;
}

}  // namespace stagger::schedule
