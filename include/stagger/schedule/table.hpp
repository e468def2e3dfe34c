// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The table of one iteration: for each rank, its actions in order.

#include <cstddef>
#include <span>
#include <vector>

#include <stagger/schedule/action.hpp>

namespace stagger::schedule {

/// The ordered actions of one iteration, a row for each rank. A value: printable, comparable,
/// constexpr.
///
/// A row is a *position*; which device a position runs on is placement's business. Rows are filled
/// one after the other: `add` appends to the last row that `begin_row` opened.
struct Table {
  int stages = 0;                        ///< S = P * V
  int microbatches = 0;                  ///< M
  int slices = 1;                        ///< sequence slices a microbatch is cut into
  std::vector<Action> actions{};         ///< all rows, one after the other
  std::vector<std::size_t> row_begin{};  ///< [ranks] index of each row's first action

  /// Number of rows.
  [[nodiscard]] constexpr int ranks() const noexcept { return static_cast<int>(row_begin.size()); }

  /// The actions of one rank, in order.
  /// @pre 0 <= rank < ranks()
  [[nodiscard]] constexpr std::span<Action const> row(int rank) const noexcept {
    auto const r = static_cast<std::size_t>(rank);
    std::size_t const end = r + 1 < row_begin.size() ? row_begin[r + 1] : actions.size();
    return std::span<Action const>{actions}.subspan(row_begin[r], end - row_begin[r]);
  }

  /// Opens the next row.
  constexpr void begin_row() { row_begin.push_back(actions.size()); }

  /// Appends to the row opened last.
  constexpr void add(Action const& action) { actions.push_back(action); }

  friend constexpr bool operator==(Table const&, Table const&) = default;
};

}  // namespace stagger::schedule
