// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The messages that a timeline of compute actions leaves out, for pictures.

#include <algorithm>
#include <iterator>
#include <tuple>
#include <utility>
#include <vector>

#include <stagger/core/grid.hpp>
#include <stagger/schedule/costs.hpp>
#include <stagger/schedule/proof/channels.hpp>
#include <stagger/schedule/proof/detail/entries.hpp>
#include <stagger/schedule/proof/detail/stage_times.hpp>
#include <stagger/schedule/table.hpp>
#include <stagger/schedule/timeline.hpp>

namespace stagger::schedule {

/// Adds the transfers of a played table of compute actions: a send on the rank that made the value
/// and a receive on the rank that needs it, both from the end of the action that made it on, since
/// such a table's transfers are pure delay. Transfers that take no time are left out.
/// @param timeline  the result of `evaluate` for the table under these costs
inline void add_transfers(Timeline& timeline, Table const& table, Costs const& costs) {
  detail::Times const times = detail::stage_times(table, costs);
  // Of a stage that two ranks hold, each microbatch runs on one of them.
  Grid<int> ranks(detail::entries(table), -1);
  for (int r = 0; r < table.ranks(); ++r) {
    for (Action const& a : table.row(r))
      if (is_compute(a.kind)) ranks[detail::entry(table, a)] = r;
  }
  Grid<std::vector<Span>> messages(timeline.ranks());
  for (int r = 0; r < timeline.ranks(); ++r) {
    for (Span const& made : timeline.row(r)) {
      Action const& a = made.action;
      bool const forward = a.kind == Kind::forward;
      int const to = a.stage + (forward ? 1 : -1);
      if ((!forward && !gives_input_gradient(a.kind)) || to < 0 || to >= table.stages) continue;
      detail::StageTimes const& there = times[to];
      double const link_s = forward ? there.link_forward : there.link_backward;
      Action const send = detail::send_of(a);
      Action const receive = partner(send);
      int const rank = ranks[detail::entry(table, receive)];
      if (!(link_s > 0) || rank < 0 || rank == r) continue;
      double const end_s = made.end_s + link_s;
      messages[r].push_back({.action = send, .start_s = made.end_s, .end_s = end_s});
      messages[rank].push_back({.action = receive, .start_s = made.end_s, .end_s = end_s});
    }
  }
  auto const order = [](Span const& a, Span const& b) {
    return std::tuple{a.start_s, a.action.stage, a.action.microbatch, a.action.slice} <
           std::tuple{b.start_s, b.action.stage, b.action.microbatch, b.action.slice};
  };
  auto const earlier = [](Span const& a, Span const& b) { return a.start_s < b.start_s; };
  Timeline both;
  for (int r = 0; r < timeline.ranks(); ++r) {
    auto const row = timeline.row(r);
    std::sort(messages[r].begin(), messages[r].end(), order);
    both.begin_row();
    std::merge(row.begin(), row.end(), messages[r].begin(), messages[r].end(),
               std::back_inserter(both.spans), earlier);
  }
  timeline = std::move(both);
}

}  // namespace stagger::schedule
