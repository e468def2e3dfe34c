// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The tag of a version of the weights, which says what it contains and is sent along with
///         the values.

#include <stagger/core/requirements.hpp>

#include <cstdint>

#include <stagger/core/algorithm.hpp>

namespace stagger::detail {

/// The number of rounds that stands for all pushes of every worker.
inline constexpr std::uint32_t all_rounds = 0xffffffff;

/// The pushes since the stream began that are contained in weights which a worker has taken.
struct VersionTag {
  std::uint32_t own = 0;
  /// Pushes of each other worker, at least; `all_rounds` if no other worker's stream goes on.
  std::uint32_t others = 0;

  /// How many rounds they contain, at least.
  [[nodiscard]] constexpr std::uint32_t rounds() const noexcept { return std::min(own, others); }
  /// Encoded as one number, for messages.
  [[nodiscard]] constexpr std::uint64_t number() const noexcept {
    return std::uint64_t{others} << 32U | own;
  }
  [[nodiscard]] static constexpr VersionTag of(std::uint64_t number) noexcept {
    return {static_cast<std::uint32_t>(number), static_cast<std::uint32_t>(number >> 32U)};
  }
  friend constexpr bool operator==(VersionTag const&, VersionTag const&) = default;
};

}  // namespace stagger::detail
