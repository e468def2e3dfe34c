// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The best cuts for devices in a given order.

#include <algorithm>
#include <cstddef>
#include <limits>
#include <span>
#include <vector>

#include <stagger/partition/costs.hpp>

namespace stagger::partition::detail {

inline constexpr double no_time = std::numeric_limits<double>::infinity();

/// Upper bounds on the speed of some devices: for each layer the time on the device that is fastest
/// for it, and for each device the largest fraction of that speed that it reaches on any layer.
struct Fastest {
  constexpr Fastest(Costs const& costs, std::span<int const> devices)
      : least_s(at(costs.layers()), no_time), rates(devices.size(), 0) {
    std::vector<std::size_t> alike;  // [devices] the first device with the same times
    for (int const device : devices) {
      std::size_t first = 0;
      while (costs.place(devices[first]).times != costs.place(device).times) ++first;
      alike.push_back(first);
      if (first + 1 != alike.size()) continue;
      for (int l = 0; l < costs.layers(); ++l)
        least_s[at(l)] = std::min(least_s[at(l)], costs.compute_s(device, l, l + 1));
    }
    for (std::size_t d = 0; d < devices.size(); ++d) {
      for (int l = 0; alike[d] == d && l < costs.layers(); ++l)
        if (double const own = costs.compute_s(devices[d], l, l + 1); own > 0)
          rates[d] = std::max(rates[d], least_s[at(l)] / own);
      rates[d] = rates[alike[d]];
    }
  }

  std::vector<double> least_s;  ///< [layers]
  std::vector<double> rates;    ///< [devices] 1 for the fastest on some layer
};

/// The best cuts for one order. A stage with more layers may take less time, since its boundary may
/// be cheaper; so all cuts are tried that keep the computing time of every stage below a bound.
class GivenOrder {
  // Templates stand first: clang evaluates them in constant expressions only where it has seen
  // them.
  [[nodiscard]] constexpr double seconds(int s, int i, int j) const {
    return stage_seconds(costs_, order_[at(s)], i, j, s == 0 ? -1 : order_[at(s - 1)],
                         s == stages_ - 1 ? -1 : order_[at(s + 1)]);
  }

  [[nodiscard]] constexpr bool fits(int s, int i, int j) const {
    return costs_.memory_bytes(i, j, s, stages_, in_flight_) <=
           costs_.place(order_[at(s)]).memory_bytes;
  }

  /// Computes the range in which each stage may end, considering only computing time. False if some
  /// stage has no possible end.
  [[nodiscard]] constexpr bool bands(double most) {
    low_.assign(at(stages_), 0);
    high_.assign(at(stages_), 0);
    int reached = 0;
    for (int s = 0; s < stages_; ++s) {
      while (reached < layers_ &&
             costs_.compute_s(order_[at(s)], s == 0 ? 0 : high_[at(s - 1)], reached + 1) <= most)
        ++reached;
      high_[at(s)] = std::min(reached, layers_ - (stages_ - 1 - s));
      reached = high_[at(s)];
    }
    int from = layers_;
    low_[at(stages_ - 1)] = layers_;
    for (int s = stages_ - 1; s > 0; --s) {
      while (from > 0 && costs_.compute_s(order_[at(s)], from - 1, low_[at(s)]) <= most) --from;
      low_[at(s - 1)] = from = std::max(from, s);
    }
    for (int s = 0; s < stages_; ++s)
      if (low_[at(s)] > high_[at(s)]) return false;
    return true;
  }

  /// Calls use(i, seconds) for each stage s with the layers [i, j), shorter ones first. `use`
  /// returns the largest time that is still of interest.
  template <class Use> constexpr void ends_at(int s, int j, double most, Use&& use) const {
    int const device = order_[at(s)];
    auto const& row = costs_.until_s[at(costs_.place(device).times)];
    bool const last = s == stages_ - 1;
    double const gradient = last ? 0 : costs_.receive_s(order_[at(s + 1)], device, j);
    int const lowest = s == 0 ? 0 : low_[at(s - 1)];
    int const highest = s == 0 ? 0 : std::min(high_[at(s - 1)], j - 1);
    double useful = most;
    for (int i = highest; i >= lowest; --i) {
      double t = row[at(j)] - row[at(i)];  // added in the order of stage_seconds
      if (t > useful) return;
      if (!fits(s, i, j)) {
        if (last) continue;  // the input of a shorter last stage may be smaller
        return;
      }
      if (s > 0) t += costs_.receive_s(order_[at(s - 1)], device, i);
      if (!last) t += gradient;
      if (t <= most) useful = std::min(useful, static_cast<double>(use(i, t)));
    }
  }

 public:
  /// @param in_flight  minibatches, for the memory
  constexpr GivenOrder(Costs const& costs, std::span<int const> order, int in_flight)
      : costs_(costs),
        order_(order),
        in_flight_(in_flight),
        stages_(static_cast<int>(order.size())),
        layers_(costs.layers()) {}

  /// The least bottleneck that is not above `most`; infinity if there is none.
  [[nodiscard]] constexpr double bottleneck(double most) {
    if (!bands(most)) return no_time;
    best_.assign(at(layers_ + 1), no_time);
    best_[0] = 0;
    std::vector<double> next(best_.size(), no_time);
    for (int s = 0; s < stages_; ++s) {
      std::fill(next.begin(), next.end(), no_time);
      for (int j = low_[at(s)]; j <= high_[at(s)]; ++j) {
        double found = no_time;
        ends_at(s, j, most, [&](int i, double seconds) {
          found = std::min(found, std::max(best_[at(i)], seconds));
          return found;
        });
        next[at(j)] = found;
      }
      best_.swap(next);
    }
    return best_[at(layers_)];
  }

  /// Of all cuts whose bottleneck is not above `most`, those with the fewest bytes over the cuts,
  /// and of these the lexicographically first. @pre there are such cuts
  [[nodiscard]] constexpr std::vector<int> cuts(double most) {
    if (!bands(most)) return {};
    // bytes[s][j]: fewest bytes over the cuts at and after j when stage s ends at j.
    std::vector<std::vector<double>> bytes(at(stages_),
                                           std::vector<double>(at(layers_ + 1), no_time));
    bytes[at(stages_ - 1)][at(layers_)] = 0;
    for (int s = stages_ - 1; s > 0; --s)
      for (int j = low_[at(s)]; j <= high_[at(s)]; ++j) {
        double const behind = bytes[at(s)][at(j)];
        if (behind == no_time) continue;
        ends_at(s, j, most, [&](int i, double) {
          double& here = bytes[at(s - 1)][at(i)];
          here = std::min(here, behind + costs_.boundary_bytes[at(i)]);
          return no_time;
        });
      }
    std::vector<int> result;
    int i = 0;
    for (int s = 0; s + 1 < stages_; ++s) {
      double least = no_time;
      int chosen = -1;
      for (int j = std::max(low_[at(s)], i + 1); j <= high_[at(s)]; ++j) {
        if (bytes[at(s)][at(j)] >= least || !fits(s, i, j) || seconds(s, i, j) > most) continue;
        least = bytes[at(s)][at(j)];
        chosen = j;
      }
      result.push_back(i = chosen);
    }
    return result;
  }

 private:
  Costs const& costs_;
  std::span<int const> order_;
  int in_flight_;
  int stages_;
  int layers_;
  std::vector<int> low_{}, high_{};  ///< [stages] range of possible ends
  std::vector<double> best_{};       ///< [layers + 1] best bottleneck of the stages so far
};

/// A lower bound on the slowest stage of any partition over these devices, in any order: the work
/// over the sum of their speeds, and the most expensive layer on the device that is fastest for it.
[[nodiscard]] constexpr double work_bound(Costs const& costs, std::span<int const> devices) {
  Fastest const fastest(costs, devices);
  double work = 0, dearest = 0, rates = 0;
  for (double const least : fastest.least_s) {
    work += least;
    dearest = std::max(dearest, least);
  }
  for (double const rate : fastest.rates) rates += rate;
  double const spread = rates > 0 ? work / rates : 0;
  return std::max(dearest, spread) * (1 - 1e-12);  // rounding must not exceed the optimum
}

/// The best bottleneck of an order, if it is below `most`. Bounds are tried that grow from a lower
/// bound, since fewer cuts must be examined for a smaller bound.
[[nodiscard]] constexpr double best_of_order(Costs const& costs, std::span<int const> order,
                                             int in_flight, double least, double most = no_time) {
  GivenOrder search(costs, order, in_flight);
  for (double const slack : {1.02, 1.1, 1.3, 2.0, 4.0}) {
    if (!(least > 0) || least * slack >= most) break;
    double const found = search.bottleneck(least * slack);
    if (found < no_time) return found;
  }
  return search.bottleneck(most);
}

}  // namespace stagger::partition::detail
