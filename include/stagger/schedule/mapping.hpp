// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The mapping of stages to ranks.

#include <cstdint>

#include <stagger/core/requirements.hpp>

namespace stagger::schedule {

/// The mappings: which rank runs which stage.
enum class Mapping : std::uint8_t {
  looped,         ///< stage s on rank s mod P
  zigzag,         ///< chunks run down, then up the ranks; with two chunks a V
  bidirectional,  ///< one chunk; microbatches of the second half run stage s on rank P - 1 - s
};

/// The rank of a stage; of the bidirectional mapping that of the first half of the microbatches.
[[nodiscard]] constexpr int rank_of(Mapping mapping, int ranks, int stage) noexcept {
  bool const up = mapping == Mapping::zigzag && stage / ranks % 2 == 1;
  return up ? ranks - 1 - stage % ranks : stage % ranks;
}

}  // namespace stagger::schedule
