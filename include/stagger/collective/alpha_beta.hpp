// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The cost of an all-reduce: a start-up and a time per byte.
/// @source S. Shi, X. Chu, B. Li, "MG-WFBP: Efficient Data Communication for Distributed
///         Synchronous SGD", INFOCOM 2019, section III, table II.

#include <bit>
#include <cstdint>

#include <stagger/core/error.hpp>
#include <stagger/core/math.hpp>

namespace stagger::collective {

/// Algorithms of an all-reduce. `slices` is the engine's: each rank adds up one contiguous slice in
/// rank order and sends it to the others.
enum class Algorithm : std::uint8_t { slices, ring, recursive_doubling, halving_doubling, tree };

/// The name an algorithm goes by in messages and on command lines.
[[nodiscard]] constexpr char const* name(Algorithm algorithm) noexcept {
  switch (algorithm) {
    case Algorithm::slices:
      return "slices";
    case Algorithm::ring:
      return "ring";
    case Algorithm::recursive_doubling:
      return "recursive-doubling";
    case Algorithm::halving_doubling:
      return "halving-doubling";
    case Algorithm::tree:
      return "tree";
  }
  return "unknown";
}

namespace detail {

constexpr void require_cost(char const* what, double value) {
  if (stagger::detail::math::finite_and_not_negative(value)) return;
  raise(Errc::bad_configuration, what, " is ", value,
        "; it must be a finite number that is not negative");
}

}  // namespace detail

/// The cost a + b * bytes of an operation over a fixed number of ranks. An empty message costs
/// nothing, so merging two messages saves exactly `startup_s`.
struct CostLine {
  double startup_s = 0;   ///< a
  double per_byte_s = 0;  ///< b

  [[nodiscard]] constexpr double seconds(std::uint64_t bytes) const noexcept {
    return bytes == 0 ? 0 : startup_s + per_byte_s * static_cast<double>(bytes);
  }
  friend constexpr bool operator==(CostLine const&, CostLine const&) = default;
};

/// A link between two ranks, and the additions at its ends.
struct Link {
  double alpha_s = 0;           ///< start-up of one message
  double beta_s_per_byte = 0;   ///< transfer
  double gamma_s_per_byte = 0;  ///< adding received values: a quarter of the time to add one float
};

/// The cost of an all-reduce. The default, slices, sends as much as the ring.
/// @param  ranks  >= 1; a power of two for the two doubling algorithms; the tree is charged
///                ceil(log2 ranks) levels for any other number
/// @throws Error  Errc::bad_configuration for ranks that the algorithm does not support, or a bad
///                link
[[nodiscard]] constexpr CostLine cost(Algorithm algorithm, int ranks, Link link) {
  if (ranks < 1) {
    raise(Errc::bad_configuration, "an all-reduce of ", ranks, " ranks has no cost; use 1 or more");
  }
  bool const pairs =
      algorithm == Algorithm::recursive_doubling || algorithm == Algorithm::halving_doubling;
  if (pairs && !std::has_single_bit(static_cast<unsigned>(ranks))) {
    raise(Errc::bad_configuration, name(algorithm), " needs a power of two ranks, there are ",
          ranks, "; use ring or tree");
  }
  detail::require_cost("alpha", link.alpha_s);
  detail::require_cost("beta", link.beta_s_per_byte);
  detail::require_cost("gamma", link.gamma_s_per_byte);
  if (ranks == 1) return {};
  double const n = ranks;
  double const levels = std::bit_width(static_cast<unsigned>(ranks - 1));  // of a binomial tree
  double const beta = link.beta_s_per_byte;
  double const gamma = link.gamma_s_per_byte;
  switch (algorithm) {
    case Algorithm::tree:
      return {2 * link.alpha_s * levels, (2 * beta + gamma) * levels};
    case Algorithm::recursive_doubling:
      return {link.alpha_s * levels, (beta + gamma) * levels};
    case Algorithm::halving_doubling:
      return {2 * link.alpha_s * levels, (n - 1) / n * (2 * beta + gamma)};
    case Algorithm::ring:
    case Algorithm::slices:
      break;
  }
  return {2 * (n - 1) * link.alpha_s, (n - 1) / n * (2 * beta + gamma)};
}

}  // namespace stagger::collective
