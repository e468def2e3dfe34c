// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The number of minibatches that each stage holds, by simulating the schedule on the cuts.
/// @source J. H. Park et al., "HetPipe", USENIX ATC 2020, sections 4 and 7.

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include <stagger/core/error.hpp>
#include <stagger/partition/costs.hpp>
#include <stagger/schedule/fifo.hpp>
#include <stagger/schedule/proof/peak_in_flight.hpp>

namespace stagger::partition {

/// Most minibatches between forward and backward at once, for each stage, in HetPipe's order:
/// never more than InFlight::safe says, and often more than InFlight::balanced does.
/// @param cuts, order    as of `judge`
/// @param in_flight      of the whole pipeline, >= 1
/// @param forward_share  of a stage's time that is its forward, 0 to 1
/// @return               [stages]
/// @throws Error         as `judge`; bad_configuration for another share
[[nodiscard]] inline std::vector<int> simulated_in_flight(Costs const& costs,
                                                          std::vector<int> const& cuts,
                                                          std::span<int const> order, int in_flight,
                                                          double forward_share = 1.0 / 3) {
  detail::require_in_flight(in_flight);
  if (!(forward_share >= 0 && forward_share <= 1))
    raise(Errc::bad_configuration, "a forward cannot take ", forward_share,
          " of a stage's time; give a share of 0 to 1");
  (void)judge(costs, cuts, order);  // for its checks of the arguments
  int const stages = static_cast<int>(order.size());
  std::vector<int> const bounds = detail::bounds_of(cuts, costs.layers());
  schedule::Costs seconds;
  for (std::size_t s = 0; s < order.size(); ++s) {
    double const both = costs.compute_s(order[s], bounds[s], bounds[s + 1]);
    double const transfer =
        s < cuts.size() ? costs.receive_s(order[s], order[s + 1], bounds[s + 1]) : 0;
    seconds.stages.push_back({.forward_s = both * forward_share,
                              .backward_input_s = both * (1 - forward_share),
                              .backward_weight_s = 0,
                              .transfer_s = transfer});
  }
  int const enough = 16 * std::max(stages, in_flight);  // the steady state and both ends
  schedule::Fifo const fifo{.in_flight = in_flight, .costs = seconds};
  return schedule::peak_in_flight(fifo.table({.ranks = stages, .microbatches = enough}));
}

/// The costs of cuts, as `judge` says, with the memory of the minibatches that each stage holds.
/// @param held  [stages] from `simulated_in_flight`
[[nodiscard]] inline Partition judge_held(Costs const& costs, std::vector<int> const& cuts,
                                          std::span<int const> order, std::span<int const> held,
                                          int in_flight) {
  Partition result = judge(costs, cuts, order, InFlight::safe, in_flight);
  if (held.size() != order.size())
    raise(Errc::bad_configuration, held.size(), " counts of minibatches for ", order.size(),
          " stages; give one for each");
  std::vector<int> const bounds = detail::bounds_of(cuts, costs.layers());
  for (std::size_t s = 0; s < order.size(); ++s)
    result.memory_bytes[s] = detail::whole_bytes(costs.memory_bytes(
        bounds[s], bounds[s + 1], order.size() == 1, s + 1 == order.size(), held[s], in_flight));
  return result;
}

}  // namespace stagger::partition
