// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The error that no partition fits into memory, with the nearest request that would.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

#include <stagger/core/error.hpp>
#include <stagger/partition/costs.hpp>
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

}  // namespace stagger::partition

namespace stagger::partition::detail {

/// Throws the error that no partition fits into memory; it names layer, device, bytes, and the
/// nearest request that would fit.
/// @param  search  (Limits) -> order, empty if nothing fits
template <class Search>
[[noreturn, gnu::cold]] inline void refuse_to_fit(Costs const& costs, Limits const& limits,
                                                  Search const& search) {
  // The smallest factor of every memory with which a partition fits, and its cuts.
  double enough = 1;
  std::vector<int> order;
  Limits wider = limits;
  while (order.empty() && enough < 1e12) {
    wider.memory_factor = enough *= 2;
    order = search(wider);
  }
  if (order.empty())
    raise(Errc::bad_configuration,
          "no partition fits, whatever the memory; check the profile's bytes");
  double little = enough / 2;
  for (int i = 0; i < 40 && enough > little * (1 + 1e-6); ++i) {
    wider.memory_factor = (little + enough) / 2;
    auto const tried = search(wider);
    if (tried.empty()) {
      little = wider.memory_factor;
    } else {
      enough = wider.memory_factor;
      order = tried;
    }
  }
  enough = std::ceil(enough * 1000) / 1000;
  wider.memory_factor = enough;
  GivenOrder cutter(costs, order, wider);
  auto const bounds = bounds_of(cutter.cuts(cutter.bottleneck(no_time)), costs.layers());
  int const stages = static_cast<int>(order.size());
  std::size_t worst = 0;
  double excess = 0;
  auto const needed = [&](std::size_t s, int first, int last) {
    return limits.bytes(costs, static_cast<int>(s), stages, first, last);
  };
  for (std::size_t s = 0; s < order.size(); ++s) {
    double const ratio = needed(s, bounds[s], bounds[s + 1]) / limits.available(costs, order[s]);
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
  double const whole = needed(worst, first, last),
               available = limits.available(costs, order[worst]);
  int const device = costs.place(order[worst]).id;
  int fewer = limits.in_flight - 1;
  for (; fewer > 0; --fewer) {
    Limits const tried{limits.rule, fewer, limits.memory_factor};
    if (!search(tried).empty()) break;
  }
  std::string sentence = text(
      "no partition fits with ", limits.in_flight, " in flight: even the best lets stage ", worst,
      " (layers ", first, " to ", last - 1, ") need ", bytes_text(whole), " bytes on device ",
      device, ", which has ", bytes_text(available), "; its largest is layer ", largest,
      ", which alone needs ", bytes_text(alone(largest)), " bytes; it fits ");
  if (fewer > 0) sentence += text("with ", fewer, " in flight, or ");
  sentence += text("with ", enough, " times the memory on each device");
  throw DoesNotFit(sentence, {.stage = static_cast<int>(worst),
                              .first = first,
                              .last = last,
                              .layer = largest,
                              .device = device,
                              .needed_bytes = whole,
                              .available_bytes = available,
                              .in_flight = std::max(fewer, 0),
                              .memory_factor = enough});
}

}  // namespace stagger::partition::detail
