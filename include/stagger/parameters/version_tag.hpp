// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   What a version of the weights contains, which travels with it.

#include <stagger/core/requirements.hpp>

#include <cstdint>

namespace stagger::detail {

/// Rounds of an answer that contains all pushes of every worker.
inline constexpr std::uint32_t all_rounds = 0xffffffff;

/// Of weights that a worker has taken: the pushes that they contain, since its stream began.
struct VersionTag {
  std::uint32_t own = 0;
  /// Of each other worker at least; `all_rounds` where there is none whose stream goes on.
  std::uint32_t others = 0;

  /// As one number of a message.
  [[nodiscard]] constexpr std::uint64_t number() const noexcept {
    return std::uint64_t{others} << 32U | own;
  }
  [[nodiscard]] static constexpr VersionTag of(std::uint64_t number) noexcept {
    return {static_cast<std::uint32_t>(number), static_cast<std::uint32_t>(number >> 32U)};
  }
  friend constexpr bool operator==(VersionTag const&, VersionTag const&) = default;
};

}  // namespace stagger::detail
