// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Plays the rows of a compute table against each other: the one loop behind proof,
/// evaluation and search.

#include <cstddef>
#include <vector>

#include <stagger/schedule/costs.hpp>
#include <stagger/schedule/proof/reductions.hpp>
#include <stagger/schedule/table.hpp>

namespace stagger::schedule::detail {

/// Index of (stage, microbatch, slice) in arrays that hold one entry for each.
[[nodiscard]] constexpr std::size_t cell(Table const& table, Action const& a) noexcept {
  return (static_cast<std::size_t>(a.stage) * static_cast<std::size_t>(table.microbatches) +
          static_cast<std::size_t>(a.microbatch)) *
             static_cast<std::size_t>(table.slices) +
         static_cast<std::size_t>(a.slice);
}

/// Number of such entries.
[[nodiscard]] constexpr std::size_t cells(Table const& table) noexcept {
  return static_cast<std::size_t>(table.stages) * static_cast<std::size_t>(table.microbatches) *
         static_cast<std::size_t>(table.slices);
}

/// True when every index of the action lies in the table's range.
[[nodiscard]] constexpr bool in_range(Table const& table, Action const& a) noexcept {
  return a.stage >= 0 && a.stage < table.stages && a.microbatch >= 0 &&
         a.microbatch < table.microbatches && a.slice >= 0 && a.slice < table.slices;
}

/// True when the table has fewer actions than entries, and so cannot be complete.
[[nodiscard]] constexpr bool sparse(Table const& table) noexcept {
  std::size_t left = table.actions.size();
  for (int const count : {table.stages, table.microbatches, table.slices}) {
    if (count < 1) return true;
    left /= static_cast<std::size_t>(count);
  }
  return left == 0;
}

/// The row of each stage; `several` for a stage that stands in more than one row. Lowest row where
/// none has it: -1.
inline constexpr int several = -2;
[[nodiscard]] constexpr std::vector<int> owners(Table const& table) {
  std::vector<int> owner(static_cast<std::size_t>(table.stages), -1);
  for (int rank = 0; rank < table.ranks(); ++rank) {
    for (Action const& a : table.row(rank)) {
      if (a.stage < 0 || a.stage >= table.stages || !is_compute(a.kind)) continue;
      int& o = owner[static_cast<std::size_t>(a.stage)];
      o = o == -1 || o == rank ? rank : several;
    }
  }
  return owner;
}

/// Seconds of the actions of one stage (or of one slice there), and of the edges into it.
struct StageTimes {
  double forward = 0, backward = 0, input = 0, weight = 0;
  double link_forward = 0;   ///< from stage - 1; 0 where both stand on one rank
  double link_backward = 0;  ///< from stage + 1
  double reduce = 0;         ///< REDUCE_GRAD

  [[nodiscard]] constexpr double of(Kind kind) const noexcept {
    switch (kind) {
      case Kind::forward:
        return forward;
      case Kind::backward:
        return backward;
      case Kind::backward_input:
        return input;
      case Kind::backward_weight:
        return weight;
      default:
        return 0;
    }
  }
};

[[nodiscard]] constexpr std::vector<StageTimes> stage_times(Table const& table,
                                                            Costs const& costs) {
  std::vector<int> const owner = owners(table);
  std::vector<StageTimes> times(static_cast<std::size_t>(table.stages), StageTimes{});
  auto const crosses = [&](std::size_t a, std::size_t b) {
    return owner[a] == several || owner[a] != owner[b];
  };
  for (std::size_t s = 0; s < times.size(); ++s) {
    StageCosts const& c = costs.of(static_cast<int>(s));
    double const share = 1.0 / table.slices;
    times[s].forward = c.forward_s * share;
    times[s].input = c.backward_input_s * share;
    times[s].weight = c.backward_weight_s * share;
    times[s].reduce = c.reduce_s;
    times[s].backward = (c.backward_input_s + c.backward_weight_s) * share;
    if (s > 0 && crosses(s, s - 1))
      times[s].link_forward = costs.of(static_cast<int>(s) - 1).transfer_s * share;
    if (s + 1 < times.size() && crosses(s, s + 1)) times[s].link_backward = c.transfer_s * share;
  }
  return times;
}

/// A visitor for `play` that keeps when the last action ends. One type for all who ask no more, so
/// that they share one copy of the loop.
struct LatestEnd {
  double end_s = 0;
  constexpr void operator()(std::size_t, std::size_t, double, double end, double) noexcept {
    if (end > end_s) end_s = end;
  }
};

/// Plays a table of compute actions and reductions in which every index is in range. Each rank runs
/// its row in order; an action starts when its rank is free and its inputs have arrived, an
/// overlapped pair when those of both have. A rank that comes to a reduction waits for the others
/// that take part.
///
/// `visit(rank, position, start, end, given)` is called for each action in the order of its rank;
/// `given` is when its last input was produced, without the link. Both actions of a pair are
/// visited with the pair's times.
/// @return per rank, how many actions ran; less than the row's length where ranks wait for each
/// other for ever Complexity: linear in the number of actions.
template <class Visit>
constexpr std::vector<std::size_t> play(Table const& table, std::vector<StageTimes> const& times,
                                        double overlap_s, Visit&& visit) {
  constexpr double unknown = -1;  // below: -2 - r means that rank r waits for the value
  std::size_t const ranks = table.row_begin.size();
  std::size_t const stride =
      static_cast<std::size_t>(table.microbatches) * static_cast<std::size_t>(table.slices);
  std::vector<double> forward(cells(table), unknown);
  std::vector<double> gradient(cells(table), unknown);
  std::vector<std::size_t> cursor(ranks, 0);
  std::vector<double> free(ranks, 0.0);
  Meetings meetings(table);
  std::vector<std::size_t> runnable;
  runnable.reserve(ranks + 1);
  for (std::size_t r = ranks; r-- > 0;) runnable.push_back(r);

  while (!runnable.empty()) {
    std::size_t const rank = runnable.back();
    runnable.pop_back();
    auto const row = table.row(static_cast<int>(rank));
    std::size_t at = cursor[rank];
    double now = free[rank];

    // When the inputs of an action arrive, or a negative number when one is not made yet.
    double given = 0;
    auto const arrives = [&](Action const& a) constexpr -> double {
      std::size_t const here = cell(table, a);
      auto const s = static_cast<std::size_t>(a.stage);
      double* input = nullptr;
      double link = 0;
      if (a.kind == Kind::forward) {
        if (s == 0) return 0;
        input = &forward[here - stride];
        link = times[s].link_forward;
      } else if (a.kind == Kind::backward_weight) {
        return gradient[here] >= 0 ? 0 : unknown;  // made on this rank or never
      } else {
        if (forward[here] < 0) return unknown;
        if (a.stage + 1 == table.stages) return 0;
        input = &gradient[here + stride];
        link = times[s].link_backward;
      }
      if (*input < 0) {
        *input = -2.0 - static_cast<double>(rank);
        return unknown;
      }
      if (*input > given) given = *input;
      return *input + link;
    };
    auto const finish = [&](Action const& a, double end) constexpr {
      if (a.kind == Kind::backward_weight) return;
      double& value = a.kind == Kind::forward ? forward[cell(table, a)] : gradient[cell(table, a)];
      if (value <= -2) runnable.push_back(static_cast<std::size_t>(-2.0 - value));
      value = end;
    };

    while (at < row.size()) {
      Action const& a = row[at];
      given = 0;
      if (a.kind == Kind::reduce_gradient) {
        cursor[rank] = at;
        if (!meetings.come(a.stage, rank, now)) break;
        double const start = meetings.start_s(a.stage);
        now = start + times[static_cast<std::size_t>(a.stage)].reduce;
        for (std::size_t const other : meetings.ranks(a.stage)) {
          visit(other, cursor[other]++, start, now, given);
          free[other] = now;
          if (other != rank) runnable.push_back(other);
        }
        ++at;
        continue;
      }
      double ready = arrives(a);
      if (ready < 0) break;
      auto const s = static_cast<std::size_t>(a.stage);
      if (a.overlaps_next && at + 1 < row.size()) {
        Action const& b = row[at + 1];
        double const second = arrives(b);
        if (second < 0) break;
        if (second > ready) ready = second;
        double const start = ready > now ? ready : now;
        double const cost =
            times[s].of(a.kind) + times[static_cast<std::size_t>(b.stage)].of(b.kind);
        now = start + (overlap_s < 0 ? cost : overlap_s);
        visit(rank, at, start, now, given);
        visit(rank, at + 1, start, now, given);
        finish(a, now);
        finish(b, now);
        at += 2;
      } else {
        double const start = ready > now ? ready : now;
        now = start + times[s].of(a.kind);
        visit(rank, at, start, now, given);
        finish(a, now);
        ++at;
      }
    }
    cursor[rank] = at;
    free[rank] = now;
  }
  return cursor;
}

}  // namespace stagger::schedule::detail
