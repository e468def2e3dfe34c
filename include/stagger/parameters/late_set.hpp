// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The set of late layers of a step, as a server sends it to its workers.

#include <stagger/core/requirements.hpp>

#include <cstddef>
#include <span>

namespace stagger::detail {

/// The late layers of a step.
struct LateSet {
  std::span<std::byte const> bitmap{};  ///< one bit for each layer, the lowest first
  std::size_t split = 0;                ///< a late layer of which only the first bytes are late
  std::size_t split_bytes = 0;          ///< how many, of its values in memory; 0: there is none
  /// How many of the first bytes of layer `l` are late.
  /// @param all  bytes of its values in memory
  [[nodiscard]] std::size_t bytes(std::size_t l, std::size_t all) const noexcept {
    if ((bitmap[l / 8] >> l % 8 & std::byte{1}) == std::byte{0}) return 0;
    return split_bytes != 0 && l == split ? split_bytes : all;
  }
};

}  // namespace stagger::detail
