// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The table of one iteration: for each rank, its actions in order.

#include <concepts>
#include <cstddef>
#include <span>
#include <vector>

#include <stagger/schedule/action.hpp>

namespace stagger::schedule {

/// The ordered actions of one iteration, a row for each rank. A value: printable, comparable,
/// constexpr.
///
/// A row is a *position*; placement decides on which device a position runs. Rows are filled one
/// after the other: `add` appends to the last row that `begin_row` opened.
struct Table {
  int stages = 0;                        ///< S = P * V
  int microbatches = 0;                  ///< M
  int slices = 1;                        ///< sequence slices a microbatch is cut into
  std::vector<Action> actions{};         ///< all rows, one after the other
  std::vector<std::size_t> row_begin{};  ///< [ranks] index of each row's first action

  [[nodiscard]] constexpr int ranks() const noexcept { return static_cast<int>(row_begin.size()); }

  /// The actions of one rank, in order.
  /// @pre 0 <= rank < ranks()
  [[nodiscard]] constexpr std::span<Action const> row(int rank) const noexcept {
    std::size_t const* const begin = row_begin.data() + rank;
    std::size_t const end = rank + 1 < ranks() ? begin[1] : actions.size();
    return {actions.data() + *begin, end - *begin};
  }

  /// A table of the same size without rows, with memory reserved for this many actions.
  template <std::integral I> [[nodiscard]] constexpr Table like(I capacity) const {
    Table table{.stages = stages, .microbatches = microbatches, .slices = slices};
    table.actions.reserve(static_cast<std::size_t>(capacity));
    return table;
  }

  /// Opens the next row.
  constexpr void begin_row() { row_begin.push_back(actions.size()); }

  /// Appends to the row opened last.
  constexpr void add(Action const& action) { actions.push_back(action); }

  constexpr void add_row(std::span<Action const> row) {
    begin_row();
    for (Action const& action : row) add(action);
  }

  friend constexpr bool operator==(Table const&, Table const&) = default;
};

/// True when every index of the action lies in the table's range.
[[nodiscard]] constexpr bool in_range(Table const& table, Action const& a) noexcept {
  return a.stage >= 0 && a.stage < table.stages && a.microbatch >= 0 &&
         a.microbatch < table.microbatches && a.slice >= 0 && a.slice < table.slices;
}

}  // namespace stagger::schedule
