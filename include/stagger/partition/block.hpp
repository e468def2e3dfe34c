// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   torchgpipe's partitioner: blocks of layers whose times are as equal as possible.
/// @source C. Kim et al., "torchgpipe: On-the-fly Pipeline Parallelism for Training Giant Models",
///         arXiv 2020; the problem is that of I. Barany, V. S. Grinberg, "Block partitions of
///         sequences", 2015. Solved exactly here.

#include <span>
#include <vector>

#include <stagger/core/error.hpp>
#include <stagger/core/math.hpp>
#include <stagger/partition/costs.hpp>
#include <stagger/partition/detail/given_order.hpp>

namespace stagger::partition {

/// Makes as many stages as devices, and minimises the largest sum of layer times. The cuts do not
/// depend on transfers, memory and differences between devices, but the reported costs do. Of
/// several optimal partitions, it takes the one whose cuts come first.
struct Block {
  int in_flight = 1;  ///< minibatches in flight, for the reported memory

  /// The first layer of each block after the first, for the given weights of layers.
  /// @throws Error  bad_configuration for fewer weights than blocks, or a weight that is negative
  ///                or not finite
  [[nodiscard]] static constexpr std::vector<int> cuts(std::span<double const> weights,
                                                       int blocks) {
    detail::require_stages(blocks, static_cast<int>(weights.size()));
    Costs plain;
    plain.until_s.push_back({0});
    for (double const w : weights) {
      if (!stagger::detail::math::finite_and_not_negative(w))
        raise(Errc::bad_configuration, "a layer has weight ", w,
              "; give a finite number that is not negative");
      plain.until_s.front().push_back(plain.until_s.front().back() + w);
    }
    plain.boundary_bytes.assign(weights.size() + 1, 0);
    plain.parameter_bytes_until = plain.stash_bytes_until = plain.boundary_bytes;
    plain.intra.push_back({});
    plain.places.assign(detail::at(blocks), {.times = 0, .node = 0, .memory_bytes = 1, .id = 0});
    std::vector<int> const order = detail::given_order(plain);
    // An empty transfer takes the link's start-up time, which is zero here.
    double const best = detail::best_of_order(plain, order, 1, detail::work_bound(plain, order));
    return detail::GivenOrder(plain, order, 1).cuts(best);
  }

  /// @throws Error  bad_configuration for no devices, or more than layers
  [[nodiscard]] constexpr Partition partition(Costs const& costs) const {
    detail::require_in_flight(in_flight);
    detail::require_stages(costs.devices(), costs.layers());
    std::vector<double> weights;
    for (int l = 0; l < costs.layers(); ++l) weights.push_back(costs.compute_s(0, l, l + 1));
    return judge(costs, cuts(weights, costs.devices()), detail::given_order(costs), in_flight);
  }
};

static_assert(CostPolicy<Block>);

}  // namespace stagger::partition
