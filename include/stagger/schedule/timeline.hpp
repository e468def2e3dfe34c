// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The times of all actions of an iteration, predicted by `evaluate` or measured by an
///         engine.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
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

/// The actions of one iteration with their times, a row for each rank in the order they ran, laid
/// out as in a `Table`. Evaluation and measurement share this type, so that prediction and
/// measurement can be compared.
struct Timeline {
  std::vector<Span> spans{};             ///< all rows, one after the other
  std::vector<std::size_t> row_begin{};  ///< [ranks] index of each row's first span

  [[nodiscard]] constexpr int ranks() const noexcept { return static_cast<int>(row_begin.size()); }

  /// The spans of one rank, in order, as long as the timeline lives.
  /// @pre 0 <= rank < ranks()
  template <std::integral I>
  [[nodiscard]] constexpr std::span<Span const> row(I rank) const& noexcept {
    auto const r = static_cast<std::size_t>(rank);
    std::size_t const end = r + 1 < row_begin.size() ? row_begin[r + 1] : spans.size();
    return {spans.data() + row_begin[r], end - row_begin[r]};
  }
  template <std::integral I> std::span<Span const> row(I rank) && = delete;  // keep the timeline

  /// Opens the next row.
  constexpr void begin_row() { row_begin.push_back(spans.size()); }

  /// Appends to the row opened last.
  constexpr void add(Span const& span) { spans.push_back(span); }

  constexpr void add_row(std::span<Span const> row) {
    begin_row();
    for (Span const& span : row) add(span);
  }
};

}  // namespace stagger::schedule
