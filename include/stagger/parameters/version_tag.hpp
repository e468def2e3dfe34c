// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The tag of a version of the weights, which says what it contains and is sent along with
///         the values.

#include <stagger/core/requirements.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include <stagger/core/basic_algorithm.hpp>

namespace stagger::detail {

/// The number of rounds that stands for all pushes of every worker, and of one worker for all
/// pushes of its stream, which has ended.
inline constexpr std::uint32_t all_rounds = 0xffffffff;

/// The pushes that are contained in weights which a worker has taken, counted from the beginning of
/// its stream. If pushes are added in the order of workers, they are those of complete rounds, in
/// which workers whose streams have ended count like the others. It refers to numbers of the
/// worker's link, which stay valid until weights of the same layer are taken again.
struct VersionTag {
  std::span<std::uint32_t const> pushes{};  ///< [workers] of each
  int worker = 0;                           ///< that took the weights

  [[nodiscard]] constexpr std::uint32_t own() const noexcept { return pushes.data()[worker]; }
  /// Pushes of each other worker, at least; `all_rounds` if no other worker's stream goes on.
  [[nodiscard]] constexpr std::uint32_t others() const noexcept {
    std::uint32_t least = all_rounds;
    for (std::size_t n = 0; n < pushes.size(); ++n)
      if (std::cmp_not_equal(n, worker)) least = std::min(least, pushes[n]);
    return least;
  }
  /// How many rounds they contain, at least.
  [[nodiscard]] constexpr std::uint32_t rounds() const noexcept {
    return std::min(own(), others());
  }
};

}  // namespace stagger::detail
