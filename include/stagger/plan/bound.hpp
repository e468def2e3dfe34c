// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A lower bound of the iteration time of every plan of a request.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include <stagger/collective/iteration.hpp>
#include <stagger/plan/workload.hpp>

namespace stagger::plan {

/// A lower bound of an iteration over all cuts, replicas, placements, warm-ups and groupings, in
/// simulated time.
///
/// The bound is the work over the sum of the devices' speeds. If all devices are equal, it is
/// raised to the smaller of two bounds:
///  - for one stage: all devices do the same work, and the gradients follow as soon as they can;
///  - for more stages: with layers up to j on r devices, the later layers start a forward later
///    and end a backward earlier than the first stage, of one sample or more.
/// Memory is left out, since it can only make plans slower.
[[nodiscard]] inline double lower_bound_s(Workload const& w) {
  int const N = w.layers();
  std::vector<int> const& ids = w.devices();
  auto const G = static_cast<double>(ids.size());
  Group const all = w.group(ids);
  double const batch = w.request().batch;
  auto const both = [&](int first, int end, std::uint64_t kinds) {
    return w.time(first, end, kinds, 1, false).both_s();
  };
  if (!all.alike()) {
    // No device is faster, on any layer, than its speed says: its work is at least work / speed.
    Group const reference = w.group(std::vector<int>{ids.front()});
    double speeds = 0;
    for (int const id : ids) {
      std::uint64_t const kinds = w.group(std::vector<int>{id}).kinds;
      double speed = 0;
      for (int l = 0; l < N; ++l) {
        double const here = both(l, l + 1, kinds), there = both(l, l + 1, reference.kinds);
        if (there > 0 && !(here > 0)) return 0;
        if (there > 0) speed = std::max(speed, there / here);
      }
      speeds += speed;
    }
    return speeds > 0 ? both(0, N, reference.kinds) * batch / speeds : 0;
  }
  double const work = both(0, N, all.kinds) * batch;
  double best = work / G;  // one stage
  if (ids.size() > 1) {    // one microbatch has the longest backward to hide gradients under
    std::vector<double> backward;
    std::vector<std::uint64_t> bytes;
    for (int l = 0; l < N; ++l) {
      backward.push_back(w.time(l, l + 1, all.kinds, std::ceil(batch / G), false).backward_s);
      bytes.push_back(w.profile().layer(l).parameter_bytes);
    }
    collective::Backward const last{0, backward, bytes};
    double own = 0;
    for (double const t : backward) own += t;
    best += std::max(0.0, collective::lower_bound_s(last, all.all_reduce) - own);
  }
  for (int j = 1; j < N; ++j) {
    double const before = both(0, j, all.kinds), behind = both(j, N, all.kinds);
    for (int r = 1; r < static_cast<int>(ids.size()); ++r) {
      double const first = before * batch / r;
      double const rest = behind * batch / (G - r) + before;
      best = std::min(best, std::max(first, rest));
    }
  }
  return best;
}

}  // namespace stagger::plan
