// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The times of all actions of an iteration, predicted by `evaluate` or measured by an
///         engine.

#include <cstdint>
#include <vector>

#include <stagger/schedule/action.hpp>

namespace stagger::schedule {

/// One action with its times, in seconds from the first action's start of the iteration. Small,
/// since the time to evaluate a large table is that of writing these.
struct Span {
  Action action;
  double start_s = 0;
  double end_s = 0;
  bool repeated = false;        ///< a forward run again by recomputation, not the table's own
  std::uint16_t lacked_of = 0;  ///< the worker of whose pushes its weights lacked most
  int lacked = -1;              ///< how many; 0: none of any worker's; -1: not known
  double exchange_s = 0;  ///< of shared layers: seconds of it that exchanges with members took
};

/// The actions of one iteration with their times, a row for each rank in the order they ran.
/// Evaluation and measurement share this type, so that prediction and measurement can be compared.
struct Timeline {
  std::vector<std::vector<Span>> rows{};  ///< [ranks][actions of the rank]

  [[nodiscard]] constexpr int ranks() const noexcept { return static_cast<int>(rows.size()); }
};

}  // namespace stagger::schedule
