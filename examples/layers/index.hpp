// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A signed type for sizes and indices, as Eigen's, without its headers.

#include <cstddef>

namespace layers {

using Index = std::ptrdiff_t;

/// A count as an index, and back.
[[nodiscard]] constexpr Index count(std::size_t n) noexcept { return static_cast<Index>(n); }
[[nodiscard]] constexpr std::size_t count(Index n) noexcept { return static_cast<std::size_t>(n); }

}  // namespace layers
