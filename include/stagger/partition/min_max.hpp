// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   HetPipe's partitioner: the slowest stage as fast as it can be.
/// @source J. H. Park et al., "HetPipe", USENIX ATC 2020, section 7. The paper hands the problem to
///         a solver of integer programs; here it is searched exactly.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <stagger/core/error.hpp>
#include <stagger/partition/costs.hpp>
#include <stagger/partition/detail/any_order.hpp>
#include <stagger/partition/detail/given_order.hpp>
#include <stagger/partition/detail/order_search.hpp>
#include <stagger/partition/detail/why_not.hpp>

namespace stagger::partition {

/// Contiguous stages over unequal devices, one device each, that minimise the slowest stage: its
/// layers' forward and backward, receiving activations from the stage before and gradients from the
/// stage after, under each device's memory.
///
/// Among equal bottlenecks the fewest bytes over the cuts win, then the cuts that come first.
/// Exact; only with `any_order` and so many kinds of devices that HetPipe's table would not fit
/// `most_states`, the best order that a search finds is taken and Partition::gap() says how much is
/// left to prove.
struct MinMax {
  bool any_order = false;     ///< devices in any order instead of the given one
  bool allow_unused = false;  ///< not every device must hold a stage (given order: skips allowed)
  InFlight rule = InFlight::safe;
  int in_flight = 1;                   ///< minibatches, >= 1; decides about memory
  std::size_t most_states = 1U << 24;  ///< 64-bit words of the table

  /// @throws Error       bad_configuration for no devices, or more stages than layers
  /// @throws DoesNotFit  where nothing fits: naming layer, device and bytes, and what would do
  [[nodiscard]] constexpr Partition partition(Costs const& costs) const {
    detail::require_in_flight(in_flight);
    if (allow_unused)
      detail::require_stages(costs.devices() > 0 ? 1 : 0, costs.layers());
    else
      detail::require_stages(costs.devices(), costs.layers());
    detail::Limits const limits{rule, in_flight, 1};
    Found const best = search(costs, limits);
    if (best.order.empty()) {
      auto const again = [&](detail::Limits const& other) { return search(costs, other).order; };
      detail::refuse_to_fit(costs, limits, again);
    }
    detail::GivenOrder exact(costs, best.order, limits);
    Partition result = judge(costs, exact.cuts(best.bottleneck_s), best.order, rule, in_flight);
    result.lower_bound_s = std::min(result.bottleneck_s, best.lower_bound_s);
    return result;
  }

 private:
  struct Found {
    std::vector<int> order{};  // empty: nothing fits
    double bottleneck_s = detail::no_time;
    double lower_bound_s = 0;
  };

  [[nodiscard]] constexpr Found search(Costs const& costs, detail::Limits const& limits) const {
    std::vector<int> all(static_cast<std::size_t>(costs.devices()), 0);
    std::iota(all.begin(), all.end(), 0);
    double const least = detail::work_bound(costs, all);
    int const most = std::min(costs.devices(), costs.layers());
    Found best{.order = {}, .lower_bound_s = least};
    if (!any_order && !allow_unused) {
      best.bottleneck_s = detail::best_of_order(costs, all, limits, least);
      best.lower_bound_s = best.bottleneck_s;
      if (best.bottleneck_s < detail::no_time) best.order = all;
      return best;
    }
    if (!any_order) return subsequences(costs, limits, all, least);
    best.lower_bound_s = detail::no_time;
    for (int stages = allow_unused ? 1 : most; stages <= most; ++stages)
      best.lower_bound_s = std::min(best.lower_bound_s, orders(costs, limits, stages, least, best));
    return best;
  }

  /// Improves `best` by partitions of exactly so many stages; none of those is below the result.
  [[nodiscard]] constexpr double orders(Costs const& costs, detail::Limits const& limits,
                                        int stages, double least, Found& best) const {
    detail::AnyOrder table(costs, limits, most_states);
    std::vector<int> all(static_cast<std::size_t>(costs.devices()), 0);
    std::iota(all.begin(), all.end(), 0);
    auto const try_from = [&](std::vector<int> const& start, long long work) {
      long long const one = static_cast<long long>(costs.layers()) * stages;
      detail::OrderSearch climb(costs, limits, stages, least,
                                std::min(work / one + 1, 40LL * stages * costs.devices()));
      climb.run(start);
      if (climb.value() >= best.bottleneck_s) return;
      best.bottleneck_s = climb.value();
      best.order = climb.order();
    };
    try_from(all, 10'000'000);
    std::sort(all.begin(), all.end(), [&](int a, int b) {
      double const x = costs.compute_s(a, 0, costs.layers());
      double const y = costs.compute_s(b, 0, costs.layers());
      return x != y ? x < y : a < b;
    });
    try_from(all, 10'000'000);
    if (!table.possible()) return least;
    if (best.order.empty()) {
      best.order = table.order(stages, detail::no_time);
      if (best.order.empty()) return detail::no_time;
      best.bottleneck_s = detail::best_of_order(costs, best.order, limits, least);
    }
    double low = least;  // nothing is below
    int runs = static_cast<int>(std::max<std::size_t>(5, 12'000'000 / table.words()));
    auto const better = [&](double most) {
      --runs;
      std::vector<int> order = table.order(stages, most);
      if (order.empty()) {
        low = std::max(low, most);
        return false;
      }
      best.bottleneck_s = detail::best_of_order(costs, order, limits, least, most);
      best.order = order;
      for (int d = 0; d < costs.devices(); ++d)  // those not used stand behind
        if (std::find(order.begin(), order.end(), d) == order.end()) order.push_back(d);
      try_from(order, 3'000'000);
      return true;
    };
    // First to within 1 %, then to the end.
    while (runs > 0 && best.bottleneck_s * 0.991 > low && better(best.bottleneck_s * 0.991)) {
    }
    while (runs > 0 && best.bottleneck_s > low)
      if (!better(best.bottleneck_s * (1 - 4e-16))) return best.bottleneck_s;
    return std::min(low, best.bottleneck_s);
  }

  /// Devices left out of the given order: every choice is tried, so this is for a few devices.
  [[nodiscard]] static constexpr Found subsequences(Costs const& costs,
                                                    detail::Limits const& limits,
                                                    std::vector<int> const& all, double least) {
    if (all.size() > 16)
      raise(Errc::bad_configuration, "leaving some of ", all.size(),
            " devices out of a given order is for at most 16; set any_order");
    Found best{.order = {}, .lower_bound_s = least};
    for (unsigned chosen = 1; chosen < 1U << all.size(); ++chosen) {
      std::vector<int> order;
      for (std::size_t d = 0; d < all.size(); ++d)
        if ((chosen >> d & 1U) != 0) order.push_back(all[d]);
      if (order.size() > static_cast<std::size_t>(costs.layers())) continue;
      double const value = detail::best_of_order(costs, order, limits, least, best.bottleneck_s);
      if (value >= best.bottleneck_s) continue;
      best.bottleneck_s = value;
      best.order = std::move(order);
    }
    best.lower_bound_s = best.bottleneck_s;
    return best;
  }
};

static_assert(CostPolicy<MinMax>);

}  // namespace stagger::partition
