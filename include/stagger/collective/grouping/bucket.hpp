// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Messages of at least a given size.
/// @source S. Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training",
///         VLDB 2020, section 3.2.3 (gradient bucketing).

#include <cstddef>
#include <cstdint>
#include <vector>

#include <stagger/collective/grouping/policy.hpp>
#include <stagger/core/error.hpp>

namespace stagger::collective::grouping {

/// From the last layer down, a message is closed as soon as it holds `bytes`; the last message may
/// hold less. Nothing needs to be measured.
struct Bucket {
  using policy_tag = GroupingTag;
  static constexpr bool uses_times = false;

  std::uint64_t bytes = std::uint64_t{25} << 20;

  /// @throws Error  Errc::bad_configuration for a bucket of no bytes
  [[nodiscard]] constexpr std::vector<LayerGroup> groups(Backward const& backward,
                                                         CostLine cost) const {
    if (bytes == 0) {
      raise(Errc::bad_configuration,
            "a bucket of 0 bytes never fills; use grouping::Layerwise for one message each");
    }
    auto const layers = detail::learnable(backward, cost);
    std::vector<std::size_t> ends;
    std::uint64_t held = 0;
    for (std::size_t i = 0; i < layers.size(); ++i) {
      held += layers.bytes[i];
      if (held < bytes && i + 1 < layers.size()) continue;
      ends.push_back(i);
      held = 0;
    }
    return detail::spread(layers, ends);
  }
};

}  // namespace stagger::collective::grouping
