// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The partition whose slowest stage is fastest, by branch and bound: independent of
///         MinMax, for few devices.
/// @source J. H. Park et al., "HetPipe", USENIX ATC 2020, section 7, poses the problem.

#include <algorithm>
#include <cstddef>
#include <vector>

#include <stagger/partition/costs.hpp>
#include <stagger/partition/detail/given_order.hpp>
#include <stagger/partition/detail/why_not.hpp>

namespace stagger::partition {

/// Depth first over (device of the next stage, its last layer). A branch ends where the slowest
/// stage so far, or the remaining work over the speeds of the remaining devices, or the most
/// expensive remaining layer on the device that is fastest for it, is not below the best partition
/// so far.
///
/// Finds MinMax's bottleneck, and its cuts where the order is given. Exponential in the devices:
/// MinMax is for many of them.
struct BranchAndBound {
  bool any_order = true;
  InFlight rule = InFlight::safe;
  int in_flight = 1;  ///< minibatches, >= 1; decides about memory

  /// @throws Error       bad_configuration for no devices, or more stages than layers
  /// @throws DoesNotFit  where nothing fits
  [[nodiscard]] Partition partition(Costs const& costs) const {
    detail::require_in_flight(in_flight);
    detail::require_stages(costs.devices(), costs.layers());
    auto const search = [&](detail::Limits const& limits) {
      Search s(costs, limits, any_order);
      s.go(0, 0, 0, 0);
      return s;
    };
    detail::Limits const limits{rule, in_flight, 1};
    Search const found = search(limits);
    if (found.best_order.empty())
      detail::refuse_to_fit(costs, limits,
                            [&](detail::Limits const& other) { return search(other).best_order; });
    detail::GivenOrder exact(costs, found.best_order, limits);
    Partition result = judge(costs, exact.cuts(found.best_s), found.best_order, rule, in_flight);
    result.lower_bound_s = result.bottleneck_s;
    return result;
  }

 private:
  struct Search {
    Search(Costs const& costs, detail::Limits const& limits, bool any)
        : costs_(costs), limits_(limits), any_(any), used_(at(costs.devices()), false) {
      detail::Fastest const fastest(costs, detail::given_order(costs));
      rate_ = fastest.rates;
      work_from_.assign(fastest.least_s.size() + 1, 0);
      dearest_from_ = work_from_;
      for (std::size_t l = fastest.least_s.size(); l-- > 0;) {
        work_from_[l] = work_from_[l + 1] + fastest.least_s[l];
        dearest_from_[l] = std::max(dearest_from_[l + 1], fastest.least_s[l]);
      }
    }

    /// Stage s and those after it get the layers from `first` on.
    /// @param worst  of the stages before, complete but for the last of them
    /// @param open   seconds of that one, without receiving gradients from stage s
    void go(int s, int first, double worst, double open) {
      int const P = costs_.devices(), N = costs_.layers();
      if (s == P) {
        double const value = std::max(worst, open);
        if (value < best_s) best_s = value, best_order = order_;
        return;
      }
      for (int d = any_ ? 0 : s; d < (any_ ? P : s + 1); ++d) {
        if (used_[at(d)] || twin_tried(d)) continue;
        int const before = s > 0 ? order_.back() : -1;
        double const closed =
            s > 0 ? std::max(worst, open + costs_.receive_s(d, before, first)) : 0;
        if (!(closed < best_s)) continue;
        used_[at(d)] = true;
        order_.push_back(d);
        for (int end = s + 1 == P ? N : first + 1; end <= N - (P - 1 - s); ++end) {
          bool const fits = limits_.bytes(costs_, s, P, first, end) <= limits_.available(costs_, d);
          double seconds = costs_.compute_s(d, first, end);
          if (s > 0) seconds += costs_.receive_s(before, d, first);
          if (!fits || !(seconds < best_s)) break;  // more layers only add to both
          if (std::max(closed, rest(end)) < best_s) go(s + 1, end, closed, seconds);
        }
        order_.pop_back();
        used_[at(d)] = false;
      }
    }

    double best_s = detail::no_time;
    std::vector<int> best_order{};  ///< empty: nothing fits

   private:
    [[nodiscard]] static std::size_t at(int i) { return detail::at(i); }

    /// True if a device before it is alike and free, so that it has been tried in this place.
    [[nodiscard]] bool twin_tried(int d) const {
      for (int other = 0; any_ && other < d; ++other)
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

    Costs const& costs_;
    detail::Limits limits_;
    bool any_;
    std::vector<bool> used_;
    std::vector<int> order_{};
    std::vector<double> work_from_{}, dearest_from_{};  // [layers + 1] on the fastest device each
    std::vector<double> rate_{};                        // [devices] 1 for the fastest on some layer
  };
};

static_assert(CostPolicy<BranchAndBound>);

}  // namespace stagger::partition
