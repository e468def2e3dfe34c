// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   What a table costs: start and end of every action, bubble, idle time by cause, memory.

#include <algorithm>
#include <cstddef>
#include <vector>

#include <stagger/schedule/costs.hpp>
#include <stagger/schedule/limits.hpp>
#include <stagger/schedule/policy.hpp>
#include <stagger/schedule/proof/channel_play.hpp>
#include <stagger/schedule/proof/verify.hpp>
#include <stagger/schedule/timeline.hpp>

namespace stagger::schedule {

/// Seconds a rank did not compute within the makespan, by what it waited for.
struct Idle {
  double dependency_s = 0;  ///< another rank had not produced the input, or nothing was left to do
  double link_s = 0;        ///< the input was on its way
  double memory_s = 0;      ///< for a gradient, while its next forward was ready and had no room;
                            ///< 0 where `evaluate` is given no limits, since then there is room
  double collective_s = 0;  ///< in a reduction, for the others and for its end; 0 where the table
                            ///< has none
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
  std::vector<int> weight_versions{};  ///< of a stage's weights that are kept; 1 for a table alone,
                                       ///< behind which all ranks flush
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
    if (a.kind == Kind::reduce_gradient) {
      out_.idle[rank].collective_s += end - free;
      free_[rank] = end;
      return;
    }
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
        if (is_message(s.action.kind)) continue;
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

/// Moves to `memory_s` what a rank waited for a gradient while a forward further on in its row had
/// arrived and only room for it was missing. Of a wait for both, the later part counts as memory.
class MemoryWaits {
 public:
  constexpr MemoryWaits(Table const& table, std::vector<StageTimes> const& times,
                        Limits const& limits, Evaluation& out)
      : table_(table), times_(times), limits_(limits), out_(out) {
    made_.assign(cells(table), 0.0);
    gradient_ = made_;
    received_.assign(cells(table), -1.0);
    for (auto const& row : out.timeline.rows) {
      for (Span const& s : row) {
        if (s.action.kind == Kind::forward) made_[cell(table, s.action)] = s.end_s;
        if (gives_input_gradient(s.action.kind)) gradient_[cell(table, s.action)] = s.end_s;
        if (s.action.kind == Kind::recv_forward) received_[cell(table, s.action)] = s.end_s;
      }
    }
  }

  constexpr void move() {
    for (std::size_t r = 0; r < out_.timeline.rows.size(); ++r) {
      auto const& row = out_.timeline.rows[r];
      Room room;
      double free = 0;
      std::size_t next = 0;  // forward
      for (std::size_t at = 0; at < row.size(); ++at) {
        Span const& s = row[at];
        if (is_message(s.action.kind)) continue;
        bool const waits = gives_input_gradient(s.action.kind) && !s.action.overlaps_next;
        next = std::max(next, at);
        while (next < row.size() && row[next].action.kind != Kind::forward) ++next;
        if (waits && next < row.size() && !room.takes(limits_)) {
          double const from = std::max(free, arrival(row[next].action));
          if (s.start_s > from) shift(out_.idle[r], from, s);
        }
        room.run(s.action.kind, limits_);
        free = std::max(free, s.end_s);
      }
    }
  }

 private:
  [[nodiscard]] constexpr double arrival(Action const& a) const {
    if (a.stage == 0) return 0;
    std::size_t const here = cell(table_, a);
    if (received_[here] >= 0) return received_[here];
    std::size_t const stride = cells(table_) / static_cast<std::size_t>(table_.stages);
    return made_[here - stride] + times_[static_cast<std::size_t>(a.stage)].link_forward;
  }

  /// The end of a wait is the gradient's way over the link, what is before it a dependency.
  constexpr void shift(Idle& idle, double from, Span const& gradient) const {
    std::size_t const stride = cells(table_) / static_cast<std::size_t>(table_.stages);
    std::size_t const here = cell(table_, gradient.action);
    bool const last = gradient.action.stage + 1 == table_.stages;
    double const made = last ? 0 : gradient_[here + stride];
    double const on_link = std::max(0.0, gradient.start_s - std::max(from, made));
    idle.memory_s += gradient.start_s - from;
    idle.link_s -= on_link;
    idle.dependency_s -= gradient.start_s - from - on_link;
  }

  Table const& table_;
  std::vector<StageTimes> const& times_;
  Limits limits_;
  Evaluation& out_;
  std::vector<double> made_, gradient_;  // [cells] ends of forwards and of input gradients
  std::vector<double> received_;         // [cells] end of the transfer to a forward; -1: none
};

}  // namespace detail

/// Plays a table under given costs.
///
/// Each rank runs its row in order; an action starts when its rank is free and its inputs have
/// arrived. In a table of compute actions a transfer is pure delay; in a table with messages it
/// occupies its channels (`Channels`).
/// @param table   a table that `verify` accepts
/// @param limits  those the table was made for: they change no time, and tell which idle time is
/// theirs
/// @throws Error bad_schedule for a table that never ends, bad_data for costs that are not finite
/// and not negative
/// Complexity: linear in the number of actions.
[[nodiscard]] constexpr Evaluation evaluate(Table const& table, Costs const& costs = {},
                                            Channels channels = Channels::per_peer,
                                            Limits const& limits = {}) {
  require_costs(costs, table.stages);
  bool messages = false;
  for (Action const& a : table.actions) {
    messages = messages || is_message(a.kind);
  }
  detail::require_playable(table);
  Evaluation out;
  detail::Account account(table, out);
  Fault stuck;
  auto const times = detail::stage_times(table, costs);
  if (messages) {
    if (Fault const f = detail::Checker(table).run()) raise(Errc::bad_schedule, message(f));
    detail::ChannelPlay play(table, channels);
    auto const ran = play.run(times, costs.overlap_s, account,
                              [&](std::size_t send, std::size_t receive, double start, double end) {
                                for (std::size_t const i : {send, receive}) {
                                  std::size_t const rank = play.rank_of(i);
                                  out.timeline.rows[rank][i - table.row_begin[rank]] = {
                                      .action = table.actions[i], .start_s = start, .end_s = end};
                                }
                              });
    stuck = detail::standstill(table, ran, play);
  } else {
    stuck = detail::standstill(table, detail::play(table, times, costs.overlap_s, account));
  }
  if (stuck) raise(Errc::bad_schedule, message(stuck));
  account.close();
  if (limits.in_flight > 0 || limits.memory > 0)
    detail::MemoryWaits(table, times, limits, out).move();
  out.weight_versions.assign(table.row_begin.size(), 1);
  out.peak_in_flight = peak_in_flight(table);
  out.peak_bytes = detail::peak_bytes(table, costs);
  return out;
}

/// Versions of its weights that each rank keeps under a policy: one where all ranks flush, else as
/// many as the policy says.
/// @return [ranks]
template <SchedulePolicy Policy>
[[nodiscard]] constexpr std::vector<int> weight_versions(Policy const& policy, Shape shape) {
  std::vector<int> versions(static_cast<std::size_t>(shape.ranks), 1);
  if constexpr (requires { policy.weight_versions(shape, 0); }) {
    for (int r = 0; r < shape.ranks; ++r)
      versions[static_cast<std::size_t>(r)] = policy.weight_versions(shape, r);
  } else {
    static_assert(Policy::flushes,
                  "stagger: a policy that does not flush says how many versions a rank keeps: int "
                  "weight_versions(Shape, int rank) const");
  }
  return versions;
}

/// Plays the table that a policy makes for a shape.
template <SchedulePolicy Policy>
[[nodiscard]] constexpr Evaluation evaluate(Policy const& policy, Shape shape,
                                            Costs const& costs = {},
                                            Channels channels = Channels::per_peer,
                                            Limits const& limits = {}) {
  Evaluation out = evaluate(policy.table(shape), costs, channels, limits);
  out.weight_versions = weight_versions(policy, shape);
  return out;
}

}  // namespace stagger::schedule
