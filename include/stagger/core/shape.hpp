// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The shape of a pipeline iteration, for which schedules are made.

#include <stagger/core/requirements.hpp>

namespace stagger {

/// Size of one pipeline iteration, in counts.
///
/// A rank is one participant of the run; it runs `chunks` stages, so there are
/// `ranks * chunks` stages. A minibatch has `microbatches` units that flow through them.
struct Shape {
  int ranks = 1;         ///< P >= 1
  int microbatches = 1;  ///< M >= 1
  int chunks = 1;        ///< V >= 1, stages on each rank

  /// Number of stages, P * V.
  [[nodiscard]] constexpr int stages() const noexcept { return ranks * chunks; }
  friend constexpr bool operator==(Shape const&, Shape const&) = default;
};

}  // namespace stagger
