// SPDX-License-Identifier: Apache-2.0
#pragma once
// The time of the slowest stage of the best partition, by branch and bound, exponential in the devices:
// independent of MinMax.
// Source: J. H. Park et al., "HetPipe", USENIX ATC 2020, section 7, poses the problem.
#include <algorithm>
#include <cstddef>
#include <vector>

#include <stagger/partition/costs.hpp>
#include <stagger/partition/detail/given_order.hpp>

namespace partitions {

namespace partition = stagger::partition;

/// Depth first over (device of the next stage, its last layer). A branch ends where the slowest
/// stage so far, or the remaining work over the speeds of the remaining devices, or the most
/// expensive remaining layer on the device that is fastest for it, is not below the best partition
/// so far.
class BranchAndBound {
 public:
  explicit BranchAndBound(partition::Costs const& costs)
      : costs_(costs), used_(at(costs.devices()), false) {
    partition::detail::Fastest const fastest(costs, partition::detail::given_order(costs));
    rate_ = fastest.rates;
    work_from_.assign(fastest.least_s.size() + 1, 0);
    dearest_from_ = work_from_;
    for (std::size_t l = fastest.least_s.size(); l-- > 0;) {
      work_from_[l] = work_from_[l + 1] + fastest.least_s[l];
      dearest_from_[l] = std::max(dearest_from_[l + 1], fastest.least_s[l]);
    }
  }

  /// Seconds of the slowest stage, over all orders of the devices.
  [[nodiscard]] double bottleneck_s() {
    go(0, 0, 0, 0);
    return best_s_;
  }

 private:
  [[nodiscard]] static std::size_t at(int i) { return partition::detail::at(i); }

  /// Stage s and those after it get the layers from `first` on.
  /// @param worst  of the stages before, complete but for the last of them
  /// @param open   seconds of that one, without receiving gradients from stage s
  void go(int s, int first, double worst, double open) {
    int const P = costs_.devices(), N = costs_.layers();
    if (s == P) {
      best_s_ = std::min(best_s_, std::max(worst, open));
      return;
    }
    for (int d = 0; d < P; ++d) {
      if (used_[at(d)] || twin_tried(d)) continue;
      int const before = s > 0 ? order_.back() : -1;
      double const closed = s > 0 ? std::max(worst, open + costs_.receive_s(d, before, first)) : 0;
      if (!(closed < best_s_)) continue;
      used_[at(d)] = true;
      order_.push_back(d);
      for (int end = s + 1 == P ? N : first + 1; end <= N - (P - 1 - s); ++end) {
        bool const fits = costs_.memory_bytes(first, end, s, P, 1) <= costs_.place(d).memory_bytes;
        double seconds = costs_.compute_s(d, first, end);
        if (s > 0) seconds += costs_.receive_s(before, d, first);
        if (!fits || !(seconds < best_s_)) break;  // more layers only add to both
        if (std::max(closed, rest(end)) < best_s_) go(s + 1, end, closed, seconds);
      }
      order_.pop_back();
      used_[at(d)] = false;
    }
  }

  /// True if a device before it is alike and free, so that it has been tried in this place.
  [[nodiscard]] bool twin_tried(int d) const {
    for (int other = 0; other < d; ++other)
      if (!used_[at(other)] && costs_.place(other).alike(costs_.place(d))) return true;
    return false;
  }

  /// Seconds that some stage of the layers from `first` on takes at least.
  [[nodiscard]] double rest(int first) const {
    double rates = 0;
    for (std::size_t d = 0; d < used_.size(); ++d) rates += used_[d] ? 0 : rate_[d];
    double const spread = rates > 0 ? work_from_[at(first)] / rates : 0;
    return std::max(dearest_from_[at(first)], spread) * (1 - 1e-12);  // sums round
  }

  partition::Costs const& costs_;
  double best_s_ = partition::detail::no_time;
  std::vector<bool> used_;
  std::vector<int> order_{};
  std::vector<double> work_from_{}, dearest_from_{};  // [layers + 1] on the fastest device each
  std::vector<double> rate_{};                        // [devices] 1 for the fastest on some layer
};

}  // namespace partitions
