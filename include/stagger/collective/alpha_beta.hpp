// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   What an all-reduce costs: a start-up and a time per byte.
/// @source S. Shi, X. Chu, B. Li, "MG-WFBP: Efficient Data Communication for Distributed
/// Synchronous
///         SGD", INFOCOM 2019, section III, table II.

#include <cstdint>
#include <limits>
#include <string>

#include <stagger/collective/steps.hpp>
#include <stagger/core/error.hpp>

namespace stagger::collective {

namespace detail {

/// std::isfinite for constant expressions, and not below zero.
[[nodiscard]] constexpr bool finite_and_not_negative(double x) noexcept {
  return x >= 0 && x <= std::numeric_limits<double>::max();
}

constexpr void require_cost(char const* what, double value) {
  if (finite_and_not_negative(value)) return;
  throw Error(Errc::bad_configuration, std::string(what) + " is " + std::to_string(value) +
                                           "; it must be a finite number that is not negative");
}

}  // namespace detail

/// The line a + b * bytes of an operation over a fixed number of ranks. Nothing to send costs
/// nothing, so merging two messages saves exactly `startup_s`.
struct CostLine {
  double startup_s = 0;   ///< a
  double per_byte_s = 0;  ///< b

  [[nodiscard]] constexpr double seconds(std::uint64_t bytes) const noexcept {
    return bytes == 0 ? 0 : startup_s + per_byte_s * static_cast<double>(bytes);
  }
  friend constexpr bool operator==(CostLine const&, CostLine const&) = default;
};

/// A link between two ranks, and the arithmetic at its ends.
struct Link {
  double alpha_s = 0;           ///< start-up of one message
  double beta_s_per_byte = 0;   ///< transfer
  double gamma_s_per_byte = 0;  ///< adding what came; per byte, a quarter of the time per float
};

/// The line of an all-reduce. The default, slices, moves what the ring moves.
/// @param  ranks  >= 1; a power of two for the two doubling algorithms; the tree is charged
///                ceil(log2 ranks) levels for any other number
/// @throws Error  Errc::bad_configuration for ranks the algorithm cannot serve, or a bad link
[[nodiscard]] constexpr CostLine cost(AllReduce algorithm, int ranks, Link link) {
  if (ranks < 1) {
    throw Error(Errc::bad_configuration,
                "an all-reduce needs at least one rank, not " + std::to_string(ranks));
  }
  require_supported(algorithm, ranks);
  detail::require_cost("alpha", link.alpha_s);
  detail::require_cost("beta", link.beta_s_per_byte);
  detail::require_cost("gamma", link.gamma_s_per_byte);
  if (ranks == 1) return {};
  double const n = ranks;
  double const levels = detail::levels(ranks);
  double const beta = link.beta_s_per_byte;
  double const gamma = link.gamma_s_per_byte;
  switch (algorithm) {
    case AllReduce::tree:
      return {2 * link.alpha_s * levels, (2 * beta + gamma) * levels};
    case AllReduce::recursive_doubling:
      return {link.alpha_s * levels, (beta + gamma) * levels};
    case AllReduce::halving_doubling:
      return {2 * link.alpha_s * levels, (n - 1) / n * (2 * beta + gamma)};
    case AllReduce::ring:
    case AllReduce::slices:
      break;
  }
  return {2 * (n - 1) * link.alpha_s, (n - 1) / n * (2 * beta + gamma)};
}

}  // namespace stagger::collective
