// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A table with explicit sends and receives, for export, for printing and for playing it on
///         channels that hold one message or none. What the engine runs is made from the table
///         without them (program/lay_out.hpp), since its slots and signals need no such order.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <stagger/core/error.hpp>
#include <stagger/core/grid.hpp>
#include <stagger/schedule/proof/detail/play.hpp>
#include <stagger/schedule/proof/detail/standstill.hpp>

namespace stagger::schedule {

/// Adds a send and a receive for every value that changes rank.
///
/// All ranks follow one order of messages: that in which the values are made when the table is
/// played at the given costs. So a rank's send always finds its peer's receive, whatever the
/// channels are (`Channels`), and even if a rank blocks until its message has been received: the
/// oldest message not yet sent is next at both of its ends. A send stands right after the
/// action that makes its value; a receive as early as that order allows.
/// @param table  without messages, one that `verify` accepts
/// @param costs  what to expect of the actions; any costs give a sound result
/// @throws Error bad_schedule for a table that never ends, or that holds messages already
/// Complexity: linear in the number of actions, times the ranks that one rank receives from.
[[nodiscard]] constexpr Table lower(Table const& table, Costs const& costs = {}) {
  if (detail::has_messages(table))
    raise(Errc::bad_schedule, "the table holds messages already; lower takes a table without them");
  detail::require_playable(table);
  require_costs(costs, table.stages);

  std::size_t const n = table.actions.size(), P = table.row_begin.size();
  std::ptrdiff_t const stride = detail::entries_of_stage(table);
  Grid<std::uint32_t> rank_of(detail::entries(table));  // [stages][microbatches][slices]
  for (std::size_t r = 0; r < P; ++r) {
    for (Action const& a : table.row(static_cast<int>(r))) {
      if (a.kind == Kind::forward) rank_of[detail::entry(table, a)] = static_cast<std::uint32_t>(r);
    }
  }
  // The rank that reads what an action makes; the action's own where nobody does.
  auto const reader = [&](Action const& a, std::size_t rank) constexpr -> std::size_t {
    std::ptrdiff_t const c = detail::entry(table, a);
    if (a.kind == Kind::forward) return a.stage + 1 < table.stages ? rank_of[c + stride] : rank;
    return gives_input_gradient(a.kind) && a.stage > 0 ? rank_of[c - stride] : rank;
  };
  // When each action ends, and its number in the order of play, which decides between two at the
  // same time: no action comes before its inputs.
  Grid<std::pair<double, std::uint32_t>> ending(n);
  std::uint32_t seen = 0;
  auto const ran = detail::play(table, detail::stage_times(table, costs), costs.overlap_s,
                                [&](int rank, std::size_t at, double, double end, double) {
                                  ending[table.row_begin.data()[rank] + at] = {end, seen++};
                                });
  if (Fault const f = detail::standstill(table, ran)) raise(Errc::bad_schedule, message(f));

  Grid<std::vector<std::size_t>> peers(P);  // ranks that a rank receives from
  for (std::size_t r = 0; r < P; ++r) {
    std::size_t last = r;
    for (Action const& a : table.row(static_cast<int>(r))) {
      std::size_t const to = reader(a, r);
      if (to == r || to == last) continue;
      last = to;
      if (std::find(peers[to].begin(), peers[to].end(), r) == peers[to].end())
        peers[to].push_back(r);
    }
  }

  Table out{.stages = table.stages, .microbatches = table.microbatches, .slices = table.slices};
  out.actions.reserve(3 * n);
  auto const send = [&](Action const& a, std::size_t rank) {
    if (reader(a, rank) != rank) out.add(detail::send_of(a));
  };
  for (std::size_t r = 0; r < P; ++r) {
    out.begin_row();
    auto const row_end = [&](std::size_t rank) {
      return rank + 1 < P ? table.row_begin[rank + 1] : n;
    };
    struct Inbox {  // of the values that the rank needs from a peer's row
      std::size_t at = 0, end = 0;
    };
    std::vector<Inbox> inboxes;
    auto const next = [&](Inbox& inbox, std::size_t peer) {
      while (inbox.at < inbox.end && reader(table.actions[inbox.at], peer) != r) ++inbox.at;
    };
    for (std::size_t const peer : peers[r]) {
      inboxes.push_back({table.row_begin[peer], row_end(peer)});
      next(inboxes.back(), peer);
    }
    std::size_t own = table.row_begin[r];
    std::size_t const own_end = row_end(r);
    // What is received has its reader after it, so nothing is left when the row ends.
    while (own < own_end) {
      std::size_t first = inboxes.size();
      for (std::size_t i = 0; i < inboxes.size(); ++i) {
        Inbox const& inbox = inboxes[i];
        if (inbox.at == inbox.end || ending[own] < ending[inbox.at]) continue;
        if (first == inboxes.size() || ending[inbox.at] < ending[inboxes[first].at]) first = i;
      }
      if (first < inboxes.size()) {
        out.add(partner(detail::send_of(table.actions[inboxes[first].at++])));
        next(inboxes[first], peers[r][first]);
        continue;
      }
      Action const& a = table.actions[own++];
      out.add(a);
      if (a.overlaps_next && own < own_end) {  // both messages of a pair stand after it
        out.add(table.actions[own]);
        send(a, r);
        send(table.actions[own++], r);
      } else {
        send(a, r);
      }
    }
  }
  return out;
}

}  // namespace stagger::schedule
