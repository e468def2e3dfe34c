// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Counts of MPI, which are an int, and the pieces in which more goes.

#include <algorithm>
#include <cstddef>
#include <limits>
#include <utility>

#include <stagger/core/error.hpp>

namespace stagger::mpi::detail {

/// The most elements that one call is given.
inline constexpr std::size_t most_in_a_call = std::size_t{1} << 30U;

/// A count for a call of MPI.
/// @throws Error  bad_configuration for more than an int holds
[[nodiscard]] inline int count_for(std::size_t elements) {
  constexpr int most = std::numeric_limits<int>::max();
  if (std::cmp_greater(elements, most))
    raise(Errc::bad_configuration, "one call of MPI takes at most ", most, " elements, not ",
          elements, "; give it pieces");
  return static_cast<int>(elements);
}

/// Calls `visit(first, count)` for pieces of at most `most` elements, in order.
template <class Visit> void each_piece(std::size_t elements, std::size_t most, Visit visit) {
  for (std::size_t at = 0; at < elements; at += most) visit(at, std::min(most, elements - at));
}

}  // namespace stagger::mpi::detail
