// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The times of all actions of an iteration, predicted by `evaluate` or measured by an
///         engine.

#include <vector>

#include <stagger/schedule/action.hpp>

namespace stagger::schedule {

/// One action with its times, in seconds from the first action's start of the iteration.
struct Span {
  Action action;
  double start_s = 0;
  double end_s = 0;
  bool repeated = false;  ///< a forward run again by recomputation, not the table's own
  int lacked = -1;        ///< most pushes of another worker that its weights lacked; -1: not known
  int lacked_of = -1;     ///< that worker, if any
  double exchange_s = 0;  ///< of shared layers: seconds of it that exchanges with members took
};

/// The actions of one iteration with their times, a row for each rank in the order they ran.
/// Evaluation and measurement share this type, so that prediction and measurement can be compared.
struct Timeline {
  std::vector<std::vector<Span>> rows{};  ///< [ranks][actions of the rank]

  [[nodiscard]] constexpr int ranks() const noexcept { return static_cast<int>(rows.size()); }
};

}  // namespace stagger::schedule
