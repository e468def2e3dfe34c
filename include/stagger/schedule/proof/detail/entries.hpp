// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Indices into arrays with an entry for each stage, microbatch and slice, and the check
///         that a table's actions are within their bounds.

#include <cstddef>

#include <stagger/core/error.hpp>
#include <stagger/schedule/fault.hpp>
#include <stagger/schedule/table.hpp>

namespace stagger::schedule::detail {

/// Index of (stage, microbatch, slice) in arrays that hold one entry for each.
[[nodiscard]] constexpr std::ptrdiff_t entry(Table const& table, Action const& a) noexcept {
  return (static_cast<std::ptrdiff_t>(a.stage) * table.microbatches + a.microbatch) * table.slices +
         a.slice;
}

/// Number of entries of one stage: from an entry to that of the next stage.
[[nodiscard]] constexpr std::ptrdiff_t entries_of_stage(Table const& table) noexcept {
  return static_cast<std::ptrdiff_t>(table.microbatches) * table.slices;
}

/// Number of all entries.
[[nodiscard]] constexpr std::ptrdiff_t entries(Table const& table) noexcept {
  return table.stages * entries_of_stage(table);
}

/// True when the table has fewer actions than entries, and so cannot be complete.
[[nodiscard]] constexpr bool sparse(Table const& table) noexcept {
  auto left = static_cast<std::ptrdiff_t>(table.actions.size());
  for (int const count : {table.stages, table.microbatches, table.slices}) {
    if (count < 1) return true;
    left /= count;
  }
  return left == 0;
}

[[nodiscard]] constexpr bool has_messages(Table const& table) noexcept {
  for (Action const& a : table.actions)
    if (is_message(a.kind)) return true;
  return false;
}

[[nodiscard]] constexpr Fault fault_at(Table const& table, FaultKind kind, int rank,
                                       std::size_t index) {
  return {.kind = kind,
          .rank = rank,
          .index = static_cast<int>(index),
          .action = table.row(rank)[index]};
}

/// Refuses a table whose actions would index outside of such arrays, or for which these would be
/// needlessly large. `play` requires this.
/// @throws Error bad_schedule
constexpr void require_playable(Table const& table) {
  for (int r = 0; r < table.ranks(); ++r) {
    auto const row = table.row(r);
    for (std::size_t at = 0; at < row.size(); ++at) {
      if (!in_range(table, row[at]))
        raise(Errc::bad_schedule, message(fault_at(table, FaultKind::out_of_range, r, at)));
    }
  }
  if (sparse(table))
    raise(Errc::bad_schedule,
          "the table has fewer actions than stages times microbatches; verify it first");
}

}  // namespace stagger::schedule::detail
