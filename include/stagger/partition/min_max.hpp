// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   HetPipe's partitioner, which minimises the time of the slowest stage.
/// @source J. H. Park et al., "HetPipe", USENIX ATC 2020, section 7. The paper uses a solver for
///         integer programs; here the search is exact.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include <stagger/core/error.hpp>
#include <stagger/partition/costs.hpp>
#include <stagger/partition/detail/any_order.hpp>
#include <stagger/partition/detail/given_order.hpp>

namespace stagger::partition {

/// Thrown if no partition fits into the devices' memory.
class DoesNotFit : public Error {
 public:
  /// What is missing, and what would suffice.
  struct Shortage {
    int stage = 0, first = 0, last = 0;  ///< of the stage that lacks least, layers [first, last)
    int layer = 0;                       ///< its largest
    int device = 0;                      ///< id in the cluster
    double needed_bytes = 0, available_bytes = 0;
    int in_flight = 0;         ///< minibatches in flight that would fit; 0: not even one
    double memory_factor = 1;  ///< factor of every device's memory that would suffice
  };

  DoesNotFit(std::string const& sentence, Shortage const& shortage)
      : Error(Errc::bad_configuration, sentence), shortage_(shortage) {}

  [[nodiscard]] Shortage const& shortage() const noexcept { return shortage_; }

 private:
  Shortage shortage_;
};

namespace detail {

/// Throws the error that no partition fits into memory; it names layer, device, bytes, and the
/// nearest request that would fit.
/// @param  search  (Costs, in flight) -> order, empty if nothing fits
template <class Search>
[[noreturn, gnu::cold]] inline void refuse_to_fit(Costs const& costs, int in_flight,
                                                  Search const& search) {
  // The smallest factor of every memory with which a partition fits, and its cuts.
  double enough = 1;
  std::vector<int> order;
  Costs wider = costs;
  auto const widen = [&](double factor) {
    for (std::size_t d = 0; d < wider.places.size(); ++d)
      wider.places[d].memory_bytes = costs.places[d].memory_bytes * factor;
  };
  while (order.empty() && enough < 1e12) {
    widen(enough *= 2);
    order = search(wider, in_flight);
  }
  if (order.empty())
    raise(Errc::bad_configuration,
          "no partition fits, whatever the memory; check the profile's bytes");
  double little = enough / 2;
  for (int i = 0; i < 40 && enough > little * (1 + 1e-6); ++i) {
    double const factor = (little + enough) / 2;
    widen(factor);
    auto const tried = search(wider, in_flight);
    (tried.empty() ? little : enough) = factor;
    if (!tried.empty()) order = tried;
  }
  enough = std::ceil(enough * 1000) / 1000;
  widen(enough);
  GivenOrder cutter(wider, order, in_flight);
  auto const bounds = bounds_of(cutter.cuts(cutter.bottleneck(no_time)), costs.layers());
  int const stages = static_cast<int>(order.size());
  std::size_t worst = 0;
  double excess = 0;
  auto const needed = [&](std::size_t s, int first, int last) {
    return costs.memory_bytes(first, last, static_cast<int>(s), stages, in_flight);
  };
  for (std::size_t s = 0; s < order.size(); ++s) {
    double const ratio = needed(s, bounds[s], bounds[s + 1]) / costs.place(order[s]).memory_bytes;
    if (ratio > excess) {
      excess = ratio;
      worst = s;
    }
  }
  int const first = bounds[worst], last = bounds[worst + 1];
  int largest = first;
  auto const alone = [&](int l) { return needed(worst, l, l + 1); };
  for (int l = first; l < last; ++l)
    if (alone(l) > alone(largest)) largest = l;
  double const whole = needed(worst, first, last);
  Place const& place = costs.place(order[worst]);
  int fewer = in_flight - 1;
  while (fewer > 0 && search(costs, fewer).empty()) --fewer;
  std::string sentence =
      text("no partition fits with ", in_flight, " in flight: even the best lets stage ", worst,
           " (layers ", first, " to ", last - 1, ") need ", sized(whole), " on device ", place.id,
           ", which has ", sized(place.memory_bytes), "; its largest is layer ", largest,
           ", which alone needs ", sized(alone(largest)), "; it fits ");
  if (fewer > 0) sentence += text("with ", fewer, " in flight, or ");
  sentence += text("with ", enough, " times the memory on each device");
  throw DoesNotFit(sentence, {.stage = static_cast<int>(worst),
                              .first = first,
                              .last = last,
                              .layer = largest,
                              .device = place.id,
                              .needed_bytes = whole,
                              .available_bytes = place.memory_bytes,
                              .in_flight = fewer,
                              .memory_factor = enough});
}

}  // namespace detail

/// Contiguous stages over unequal devices, one device each, that minimise the slowest stage: its
/// layers' forward and backward, receiving activations from the stage before and gradients from the
/// stage after, under each device's memory.
///
/// Of partitions with equal bottlenecks it takes the one with the fewest bytes over the cuts, then
/// the one whose cuts come first. The result is optimal, except with `any_order` and so many kinds
/// of devices that HetPipe's table would exceed `most_states`: then the best order found by a local
/// search is taken, and Partition::gap() bounds the distance from the optimum.
struct MinMax {
  bool any_order = false;              ///< devices in any order instead of the given one
  int in_flight = 1;                   ///< minibatches in flight, >= 1, for the memory
  std::size_t most_states = 1U << 24;  ///< 64-bit words of the table

  /// @throws Error       bad_configuration for no devices, or more stages than layers
  /// @throws DoesNotFit if nothing fits; names layer, device and bytes, and what would suffice
  [[nodiscard]] constexpr Partition partition(Costs const& costs) const {
    detail::require_in_flight(in_flight);
    detail::require_stages(costs.devices(), costs.layers());
    Found const best = search(costs, in_flight);
    if (best.order.empty())
      detail::refuse_to_fit(costs, in_flight, [&](Costs const& other, int minibatches) {
        return search(other, minibatches).order;
      });
    detail::GivenOrder exact(costs, best.order, in_flight);
    Partition result = judge(costs, exact.cuts(best.bottleneck_s), best.order, in_flight);
    result.lower_bound_s = std::min(result.bottleneck_s, best.lower_bound_s);
    return result;
  }

 private:
  struct Found {
    std::vector<int> order{};  // empty if nothing fits
    double bottleneck_s = detail::no_time;
    double lower_bound_s = 0;
  };

  [[nodiscard]] constexpr Found search(Costs const& costs, int minibatches) const {
    std::vector<int> const all = detail::given_order(costs);
    double const least = detail::work_bound(costs, all);
    Found best;
    if (any_order) {
      best.lower_bound_s = orders(costs, minibatches, least, best);
    } else {
      best.bottleneck_s = detail::best_of_order(costs, all, minibatches, least);
      best.lower_bound_s = best.bottleneck_s;
      if (best.bottleneck_s < detail::no_time) best.order = all;
    }
    return best;
  }

  /// Finds the best partition over all orders, and returns a lower bound.
  [[nodiscard]] constexpr double orders(Costs const& costs, int minibatches, double least,
                                        Found& best) const {
    detail::AnyOrder table(costs, minibatches, most_states);
    auto const try_from = [&](std::vector<int> const& start, long long work) {
      long long const devices = costs.devices(), one = costs.layers() * devices;
      auto found = detail::climb(costs, minibatches, least,
                                 std::min(work / one + 1, 40 * devices * devices), start);
      if (found.second >= best.bottleneck_s) return;
      best.order = std::move(found.first);
      best.bottleneck_s = found.second;
    };
    std::vector<int> all = detail::given_order(costs);
    try_from(all, 10'000'000);
    std::sort(all.begin(), all.end(), [&](int a, int b) {
      double const x = costs.compute_s(a, 0, costs.layers());
      double const y = costs.compute_s(b, 0, costs.layers());
      return x != y ? x < y : a < b;
    });
    try_from(all, 10'000'000);
    if (!table.possible()) return least;
    if (best.order.empty()) {
      best.order = table.order(detail::no_time);
      if (best.order.empty()) return detail::no_time;
      best.bottleneck_s = detail::best_of_order(costs, best.order, minibatches, least);
    }
    double low = least;  // lower bound
    int runs = static_cast<int>(std::max<std::size_t>(5, 12'000'000 / table.words()));
    auto const better = [&](double most) {
      --runs;
      std::vector<int> const order = table.order(most);
      if (order.empty()) {
        low = std::max(low, most);
        return false;
      }
      best.bottleneck_s = detail::best_of_order(costs, order, minibatches, least, most);
      best.order = order;
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
};

static_assert(CostPolicy<MinMax>);

}  // namespace stagger::partition
