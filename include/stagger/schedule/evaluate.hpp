// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   What a table costs: start and end of every action, bubble, idle time by cause, memory.

#include <algorithm>
#include <cstddef>
#include <vector>

#include <stagger/schedule/channel_play.hpp>
#include <stagger/schedule/costs.hpp>
#include <stagger/schedule/timeline.hpp>
#include <stagger/schedule/verify.hpp>

namespace stagger::schedule {

/// Seconds a rank did not compute within the makespan, by what it waited for.
struct Idle {
  double dependency_s = 0;  ///< another rank had not produced the input, or nothing was left to do
  double link_s = 0;        ///< the input was on its way
  double memory_s = 0;      ///< no room for one more activation
  double collective_s = 0;  ///< a collective operation
  [[nodiscard]] constexpr double total_s() const noexcept {
    return dependency_s + link_s + memory_s + collective_s;
  }
};

/// The result of `evaluate`. All vectors have one entry per rank.
struct Evaluation {
  Timeline timeline;             ///< every action; of a table with messages its transfers as well
  double makespan_s = 0;         ///< first start to last end over all ranks
  double longest_span_s = 0;     ///< the longest of all ranks' own first start to last end
  std::vector<double> work_s{};  ///< seconds computed
  double bubble_s = 0;           ///< makespan - work of the busiest rank
  double span_bubble_s = 0;      ///< longest span - work of the busiest rank
  std::vector<Idle> idle{};      ///< sums to makespan - work
  std::vector<int> peak_in_flight{};  ///< (stage, microbatch) pairs, F run and B or W not
  std::vector<double> peak_bytes{};   ///< activation bytes, released in part after I (`StageCosts`)
};

namespace detail {

/// Largest sum of activation bytes on each rank, in row order.
[[nodiscard]] constexpr std::vector<double> peak_bytes(Table const& table, Costs const& costs) {
  std::vector<double> peak(table.row_begin.size(), 0.0);
  for (std::size_t r = 0; r < peak.size(); ++r) {
    double live = 0;
    double freed_with_next = 0;  // by the backward of a pair whose forward stands behind it
    for (Action const& a : table.row(static_cast<int>(r))) {
      StageCosts const& c = costs.of(a.stage);
      double const bytes = c.activation_bytes / table.slices;
      double freed = 0;
      if (a.kind == Kind::forward) live += bytes;
      if (a.kind == Kind::backward) freed = bytes;
      if (a.kind == Kind::backward_input) freed = bytes * (1 - c.weight_share);
      if (a.kind == Kind::backward_weight) freed = bytes * c.weight_share;
      peak[r] = std::max(peak[r], live);
      live -= freed_with_next;
      freed_with_next = a.overlaps_next ? freed : 0;
      if (!a.overlaps_next) live -= freed;
    }
  }
  return peak;
}

/// Adds up what a visitor of `play` sees.
class Account {
 public:
  constexpr Account(Table const& table, Evaluation& out) : table_(table), out_(out) {
    std::size_t const ranks = table.row_begin.size();
    out.timeline.rows.assign(ranks, std::vector<Span>{});
    for (std::size_t r = 0; r < ranks; ++r) {
      out.timeline.rows[r].assign(table.row(static_cast<int>(r)).size(), Span{});
    }
    out.work_s.assign(ranks, 0.0);
    out.idle.assign(ranks, {});
    free_.assign(ranks, 0.0);
  }

  constexpr void operator()(std::size_t rank, std::size_t at, double start, double end,
                            double given) {
    Action const& a = table_.actions[table_.row_begin[rank] + at];
    out_.timeline.rows[rank][at] = {.action = a, .start_s = start, .end_s = end};
    double const free = free_[rank];
    if (end <= free && start < free) return;  // the second action of a pair
    if (start > free) {
      double const link = start - std::max(free, given);
      out_.idle[rank].link_s += link;
      out_.idle[rank].dependency_s += start - free - link;
    }
    out_.work_s[rank] += end - start;
    free_[rank] = end;
  }

  constexpr void close() {
    double first = 0, last = 0, busiest = 0;
    bool any = false;
    for (std::size_t r = 0; r < out_.timeline.rows.size(); ++r) {
      double begin = -1, end = 0;
      for (Span const& s : out_.timeline.rows[r]) {
        if (!is_compute(s.action.kind)) continue;
        if (begin < 0) begin = s.start_s;
        end = s.end_s;
      }
      if (begin < 0) continue;
      first = any ? std::min(first, begin) : begin;
      any = true;
      last = std::max(last, end);
      out_.longest_span_s = std::max(out_.longest_span_s, end - begin);
      busiest = std::max(busiest, out_.work_s[r]);
    }
    out_.makespan_s = last - first;
    out_.bubble_s = out_.makespan_s - busiest;
    out_.span_bubble_s = out_.longest_span_s - busiest;
    for (std::size_t r = 0; r < free_.size(); ++r) out_.idle[r].dependency_s += last - free_[r];
  }

 private:
  Table const& table_;
  Evaluation& out_;
  std::vector<double> free_;
};

}  // namespace detail

/// Plays a table under given costs.
///
/// Each rank runs its row in order; an action starts when its rank is free and its inputs have
/// arrived. In a table of compute actions a transfer is pure delay; in a table with messages it
/// occupies its channels (`Channels`).
/// @param table     a table that `verify` accepts
/// @throws Error bad_schedule for a table that never ends, bad_data for costs that are not finite
/// and not negative Complexity: linear in the number of actions.
[[nodiscard]] constexpr Evaluation evaluate(Table const& table, Costs const& costs = {},
                                            Channels channels = Channels::per_peer) {
  require_costs(costs, table.stages);
  bool messages = false;
  for (Action const& a : table.actions) {
    messages = messages || !is_compute(a.kind);
  }
  detail::require_playable(table);
  Evaluation out;
  detail::Account account(table, out);
  std::vector<std::size_t> ran;
  auto const times = detail::stage_times(table, costs);
  if (messages) {
    if (Fault const f = detail::Checker(table).run()) throw Error(Errc::bad_schedule, message(f));
    detail::ChannelPlay play(table, channels);
    ran = play.run(times, costs.overlap_s, account,
                   [&](std::size_t send, std::size_t receive, double start, double end) {
                     for (std::size_t const i : {send, receive}) {
                       std::size_t const rank = play.rank_of(i);
                       out.timeline.rows[rank][i - table.row_begin[rank]] = {
                           .action = table.actions[i], .start_s = start, .end_s = end};
                     }
                   });
  } else {
    ran = detail::play(table, times, costs.overlap_s, account);
  }
  if (Fault const f = detail::standstill(table, ran)) throw Error(Errc::bad_schedule, message(f));
  account.close();
  out.peak_in_flight = peak_in_flight(table);
  out.peak_bytes = detail::peak_bytes(table, costs);
  return out;
}

}  // namespace stagger::schedule
