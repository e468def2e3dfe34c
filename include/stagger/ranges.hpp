// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Tables and timelines as range-v3 views, and tables from ranges. Component `ranges`.
///
///     for (Action const& a : views::actions(table) | views::of_stage(2) | views::of_kind(F)) ...

#if !__has_include(<range/v3/view/filter.hpp>)
#error \
    "stagger/ranges.hpp needs range-v3: link stagger::ranges, or put range-v3 on the include path"
#endif

#include <algorithm>
#include <cstddef>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include <range/v3/range/access.hpp>
#include <range/v3/range/concepts.hpp>
#include <range/v3/range/traits.hpp>
#include <range/v3/view/filter.hpp>
#include <range/v3/view/iota.hpp>
#include <range/v3/view/transform.hpp>

#include <stagger/core/error.hpp>
#include <stagger/schedule/table.hpp>
#include <stagger/schedule/timeline.hpp>

namespace stagger::views {

/// An action with its times and the rank that ran it.
struct Timed {
  int rank = 0;
  schedule::Span span{};
};

/// The action of an element: of an action itself, of a span with times, of a timed one.
[[nodiscard]] constexpr schedule::Action action_of(schedule::Action const& a) noexcept { return a; }
[[nodiscard]] constexpr schedule::Action action_of(schedule::Span const& s) noexcept {
  return s.action;
}
[[nodiscard]] constexpr schedule::Action action_of(Timed const& t) noexcept {
  return t.span.action;
}

/// All actions of a table, row after row. The table must outlive the view.
[[nodiscard]] inline std::span<schedule::Action const> actions(
    schedule::Table const& table) noexcept {
  return table.actions;
}
std::span<schedule::Action const> actions(schedule::Table const&& table) = delete;

/// The actions of one rank, in order. The table must outlive the view.
/// @throws Error bad_configuration for a rank that the table does not have
[[nodiscard]] inline std::span<schedule::Action const> of_rank(schedule::Table const& table,
                                                               int rank) {
  if (rank < 0 || rank >= table.ranks()) {
    raise(Errc::bad_configuration, "a table of ", counted(table.ranks(), "rank"), " has no rank ",
          rank, "; ranks count from 0");
  }
  return table.row(rank);
}
std::span<schedule::Action const> of_rank(schedule::Table const&& table, int rank) = delete;

/// The rows of a table, each a span of its actions. The table must outlive the view.
[[nodiscard]] inline auto rows(schedule::Table const& table) {
  schedule::Table const* const t = &table;
  return ::ranges::views::iota(0, table.ranks()) |
         ::ranges::views::transform([t](int rank) { return t->row(rank); });
}
void rows(schedule::Table const&& table) = delete;

/// `range | of_stage(s)`: what a stage does.
[[nodiscard]] inline auto of_stage(int stage) {
  return ::ranges::views::filter(
      [stage](auto const& element) { return action_of(element).stage == stage; });
}

/// `range | of_microbatch(m)`: what is done to a microbatch, in the order of the range.
[[nodiscard]] inline auto of_microbatch(int microbatch) {
  return ::ranges::views::filter(
      [microbatch](auto const& element) { return action_of(element).microbatch == microbatch; });
}

/// `range | of_kind(Kind::forward)`: all actions of a kind.
[[nodiscard]] inline auto of_kind(schedule::Kind kind) {
  return ::ranges::views::filter(
      [kind](auto const& element) { return action_of(element).kind == kind; });
}

/// The actions of all ranks by their start, ties by rank, then in the order of the row. Sorted
/// here, so this is a container and not lazy.
/// @param timeline  of `evaluate`, or measured
/// @complexity      O(n log n)
[[nodiscard]] inline std::vector<Timed> in_time_order(schedule::Timeline const& timeline) {
  std::vector<Timed> all;
  for (int rank = 0; rank < timeline.ranks(); ++rank) {
    for (schedule::Span const& span : timeline.row(rank)) {
      all.push_back({rank, span});
    }
  }
  std::stable_sort(all.begin(), all.end(), [](Timed const& a, Timed const& b) {
    return std::tie(a.span.start_s, a.rank) < std::tie(b.span.start_s, b.rank);
  });
  return all;
}

/// A table from a range of rows, each a range of actions: a schedule of one's own, or a filtered
/// one. Counts are the largest index + 1. Whether the table is legal is for `verify` to say.
template <class Rows>
  requires ::ranges::input_range<Rows> && ::ranges::input_range<::ranges::range_reference_t<Rows>>
[[nodiscard]] schedule::Table to_table(Rows&& rows) {
  schedule::Table table;
  for (auto&& row : rows) {
    table.begin_row();
    for (auto&& element : row) {
      schedule::Action const a = action_of(element);
      table.stages = std::max(table.stages, a.stage + 1);
      table.microbatches = std::max(table.microbatches, a.microbatch + 1);
      table.slices = std::max(table.slices, a.slice + 1);
      table.add(a);
    }
  }
  return table;
}

}  // namespace stagger::views
