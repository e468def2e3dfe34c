// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The evaluation of a table under given costs: start and end of every action, bubble, idle
///         time by cause, memory.

#include <algorithm>
#include <cstddef>
#include <vector>

#include <stagger/core/grid.hpp>
#include <stagger/schedule/costs.hpp>
#include <stagger/schedule/limits.hpp>
#include <stagger/schedule/policy.hpp>
#include <stagger/schedule/proof/channels.hpp>
#include <stagger/schedule/proof/detail/check.hpp>
#include <stagger/schedule/proof/detail/play.hpp>
#include <stagger/schedule/proof/detail/standstill.hpp>
#include <stagger/schedule/proof/peak_in_flight.hpp>
#include <stagger/schedule/timeline.hpp>

namespace stagger::schedule {

/// Seconds in which a rank did not compute within the makespan, by the reason.
struct Idle {
  double dependency_s = 0;  ///< another rank had not produced the input, or nothing was left to do
  double link_s = 0;        ///< the input was in transit
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
                                       ///< after which all ranks flush
};

namespace detail {

/// Largest sum of activation bytes on each rank, in row order.
[[nodiscard]] constexpr std::vector<double> peak_bytes(Table const& table, Costs const& costs) {
  struct StageBytes {
    double all = 0, freed_by_input = 0, freed_by_weight = 0;
  };
  Grid<StageBytes> stages(table.stages);
  for (int stage = 0; stage < table.stages; ++stage) {
    StageCosts const& c = costs.of(stage);
    double const all = c.activation_bytes / table.slices;
    stages[stage] = {all, all * (1 - c.weight_share), all * c.weight_share};
  }
  std::vector<double> peaks;
  for (int r = 0; r < table.ranks(); ++r) {
    double live = 0, peak = 0;
    double freed_with_next = 0;  // by the backward of a pair whose forward stands after it
    for (Action const& a : table.row(r)) {
      if (!is_compute(a.kind)) continue;
      StageBytes const& stage = stages[a.stage];
      double freed = 0;
      if (a.kind == Kind::forward) live += stage.all;
      if (a.kind == Kind::backward) freed = stage.all;
      if (a.kind == Kind::backward_input) freed = stage.freed_by_input;
      if (a.kind == Kind::backward_weight) freed = stage.freed_by_weight;
      peak = std::max(peak, live);
      live -= freed_with_next;
      freed_with_next = a.overlaps_next ? freed : 0;
      if (!a.overlaps_next) live -= freed;
    }
    peaks.push_back(peak);
  }
  return peaks;
}

/// Adds up what a visitor of `play` sees.
class Account {
 public:
  constexpr Account(Table const& table, Evaluation& out)
      : table_(table), out_(out), begin_(table.ranks(), -1.0), free_(table.ranks()) {
    out.timeline.spans.resize(table.actions.size());
    out.timeline.row_begin = table.row_begin;
    out.work_s.assign(table.row_begin.size(), 0.0);
    out.idle.assign(table.row_begin.size(), {});
  }

  constexpr void operator()(int rank, std::size_t at, double start, double end, double given) {
    std::size_t const index = table_.row_begin.data()[rank] + at;
    Span& span = out_.timeline.spans.data()[index];
    Idle& idle = out_.idle.data()[rank];
    span.action = table_.actions.data()[index];
    span.start_s = start;
    span.end_s = end;
    double const free = free_[rank];
    if (begin_[rank] < 0) begin_[rank] = start;
    if (span.action.kind == Kind::reduce_gradient) {
      idle.collective_s += end - free;
      free_[rank] = end;
      return;
    }
    if (end <= free && start < free) return;  // the second action of a pair
    if (start > free) {
      double const link = start - std::max(free, given);
      idle.link_s += link;
      idle.dependency_s += start - free - link;
    }
    out_.work_s.data()[rank] += end - start;
    free_[rank] = end;
  }

  constexpr void close() {
    double first = 0, last = 0, busiest = 0;
    bool any = false;
    for (std::size_t r = 0; r < out_.idle.size(); ++r) {
      if (begin_[r] < 0) continue;
      first = any ? std::min(first, begin_[r]) : begin_[r];
      any = true;
      last = std::max(last, free_[r]);
      out_.longest_span_s = std::max(out_.longest_span_s, free_[r] - begin_[r]);
      busiest = std::max(busiest, out_.work_s[r]);
    }
    out_.makespan_s = last - first;
    out_.bubble_s = out_.makespan_s - busiest;
    out_.span_bubble_s = out_.longest_span_s - busiest;
    for (std::size_t r = 0; r < out_.idle.size(); ++r) out_.idle[r].dependency_s += last - free_[r];
  }

 private:
  Table const& table_;
  Evaluation& out_;
  Grid<double> begin_, free_;  // [ranks] start of the first action, end of the last; -1: none
};

/// Moves to `memory_s` what a rank waited for a gradient while a forward further on in its row had
/// arrived and only room for it was missing. Of a wait for both, the later part counts as memory.
constexpr void move_memory_waits(Table const& table, Times const& times, Limits const& limits,
                                 Evaluation& out) {
  std::ptrdiff_t const stride = entries_of_stage(table);
  // Ends of forwards, of input gradients, and of transfers to forwards.
  Grid<double> made(entries(table)), gradient(entries(table)), received(entries(table), -1.0);
  for (Span const& s : out.timeline.spans) {
    std::ptrdiff_t const here = entry(table, s.action);
    if (s.action.kind == Kind::forward) made[here] = s.end_s;
    if (gives_input_gradient(s.action.kind)) gradient[here] = s.end_s;
    if (s.action.kind == Kind::recv_forward) received[here] = s.end_s;
  }
  auto const arrival = [&](Action const& forward) {
    if (forward.stage == 0) return 0.0;
    std::ptrdiff_t const here = entry(table, forward);
    if (received[here] >= 0) return received[here];
    return made[here - stride] + times[forward.stage].link_forward;
  };
  for (int r = 0; r < table.ranks(); ++r) {
    auto const row = out.timeline.row(r);
    Idle& idle = out.idle.data()[r];
    Occupancy occupancy;
    double free = 0;
    std::size_t next = 0;  // forward
    for (std::size_t at = 0; at < row.size(); ++at) {
      Span const& s = row[at];
      if (is_message(s.action.kind)) continue;
      bool const waits = gives_input_gradient(s.action.kind) && !s.action.overlaps_next;
      next = std::max(next, at);
      while (next < row.size() && row[next].action.kind != Kind::forward) ++next;
      if (waits && next < row.size() && !occupancy.takes(limits)) {
        double const from = std::max(free, arrival(row[next].action));
        if (s.start_s > from) {
          // The end of a wait is the gradient's way over the link, what is before it a dependency.
          bool const last = s.action.stage + 1 == table.stages;
          double const given = last ? 0 : gradient[entry(table, s.action) + stride];
          double const on_link = std::max(0.0, s.start_s - std::max(from, given));
          idle.memory_s += s.start_s - from;
          idle.link_s -= on_link;
          idle.dependency_s -= s.start_s - from - on_link;
        }
      }
      occupancy.run(s.action.kind, limits);
      free = std::max(free, s.end_s);
    }
  }
}

}  // namespace detail

/// Plays a table under given costs.
///
/// Each rank runs its row in order; an action starts when its rank is free and its inputs have
/// arrived. In a table of compute actions a transfer is pure delay; in a table with messages it
/// occupies its channels (`Channels`).
/// @param table   a table that `verify` accepts
/// @param limits  those that the table was made for: they change no time, but say which idle time
///                is due to them
/// @throws Error bad_schedule for a table that never ends, bad_data for costs that are not finite
/// and not negative
/// Complexity: linear in the number of actions.
[[nodiscard]] constexpr Evaluation evaluate(Table const& table, Costs const& costs = {},
                                            Channels channels = Channels::per_peer,
                                            Limits const& limits = {}) {
  require_costs(costs, table.stages);
  detail::require_playable(table);
  Evaluation out;
  detail::Account account(table, out);
  Fault stuck;
  detail::Times const times = detail::stage_times(table, costs);
  if (detail::has_messages(table)) {
    detail::Checked checked{table};
    if (Fault const f = detail::check(checked)) raise(Errc::bad_schedule, message(f));
    detail::ChannelTransfers transfers(table, times, channels);
    detail::play(table, times, costs.overlap_s, transfers, account);
    stuck = detail::standstill(table, transfers);
    for (std::size_t i = 0; i < table.actions.size(); ++i) {
      Span& s = out.timeline.spans[i];
      s.action = table.actions[i];
      if (is_message(s.action.kind)) transfers.get_times(s.action, s.start_s, s.end_s);
    }
  } else {
    stuck = detail::standstill(table, detail::play(table, times, costs.overlap_s, account));
  }
  if (stuck) raise(Errc::bad_schedule, message(stuck));
  account.close();
  if (limits.in_flight > 0 || limits.memory > 0)
    detail::move_memory_waits(table, times, limits, out);
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
  constexpr bool says = requires { policy.weight_versions(shape, 0); };
  static_assert(says || Policy::flushes,
                "stagger: a policy that does not flush says how many versions a rank keeps: int "
                "weight_versions(Shape, int rank) const");
  std::vector<int> versions;
  for (int r = 0; r < shape.ranks; ++r) {
    if constexpr (says)
      versions.push_back(policy.weight_versions(shape, r));
    else
      versions.push_back(1);
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
