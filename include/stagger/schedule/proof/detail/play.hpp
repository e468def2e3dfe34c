// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The player of tables: runs the rows of all ranks against each other, for proof,
///         evaluation and search.

#include <algorithm>
#include <cstddef>
#include <vector>

#include <stagger/core/grid.hpp>
#include <stagger/schedule/proof/detail/entries.hpp>
#include <stagger/schedule/proof/detail/stage_times.hpp>
#include <stagger/schedule/table.hpp>

namespace stagger::schedule::detail {

/// Where the ranks that hold a stage wait for each other before its gradients are added
/// (REDUCE_GRAD). Takes no memory while a table has no reductions.
class ReductionBarriers {
 public:
  struct Barrier {
    int expected = 0;
    std::vector<int> ranks{};  ///< in the order in which they came
    double start_s = 0;        ///< when the last one came
  };

  constexpr explicit ReductionBarriers(Table const& table) : table_(table) {}

  /// A rank has reached its reduction of a stage.
  /// @return the barrier when all have come; null before
  constexpr Barrier const* arrive(int stage, int rank, double now) {
    if (barriers_.empty()) {
      barriers_ = Grid<Barrier>(table_.stages);
      for (Action const& a : table_.actions)
        if (a.kind == Kind::reduce_gradient) ++barriers_[a.stage].expected;
    }
    Barrier& barrier = barriers_[stage];
    barrier.ranks.push_back(rank);
    barrier.start_s = std::max(barrier.start_s, now);
    return static_cast<int>(barrier.ranks.size()) == barrier.expected ? &barrier : nullptr;
  }

 private:
  Table const& table_;
  Grid<Barrier> barriers_{};  // [stages], or empty
};

/// How values reach their readers in a table without messages: each transfer is pure delay, however
/// many there are at a time.
class Delays {
 public:
  static constexpr bool has_messages = false;

  constexpr Delays(Table const& table, Times const& times)
      : table_(table),
        times_(times),
        stride_(entries_of_stage(table)),
        forward_(entries(table), not_made_),
        gradient_(entries(table), not_made_) {}

  /// When the input of an action is on its rank; negative while it is not.
  /// @param given  raised to when the input was made, without the link
  constexpr double arrives(int rank, Action const& a, double& given) {
    std::ptrdiff_t const here = entry(table_, a);
    double* input = nullptr;
    double link = 0;
    if (a.kind == Kind::forward) {
      if (a.stage == 0) return 0;
      input = &forward_[here - stride_];
      link = times_[a.stage].link_forward;
    } else if (a.kind == Kind::backward_weight) {
      return gradient_[here] >= 0 ? 0 : not_made_;  // made on this rank or never
    } else {
      if (forward_[here] < 0) return not_made_;
      if (a.stage + 1 == table_.stages) return 0;
      input = &gradient_[here + stride_];
      link = times_[a.stage].link_backward;
    }
    if (*input < 0) {
      *input = -2.0 - rank;
      return not_made_;
    }
    if (*input > given) given = *input;
    return *input + link;
  }

  /// An action has ended; the rank that waits for its value can go on.
  [[gnu::always_inline]] constexpr void ended(std::size_t, Action const& a, double end,
                                              std::vector<int>& runnable) {
    if (!makes_value(a.kind)) return;
    double& value =
        a.kind == Kind::forward ? forward_[entry(table_, a)] : gradient_[entry(table_, a)];
    if (value <= -2) runnable.push_back(static_cast<int>(-2.0 - value));
    value = end;
  }

  /// Nothing to do when a rank comes no further: values arrive by themselves.
  constexpr void transfer(std::vector<int>&) noexcept {}

 private:
  static constexpr double not_made_ = -1;  // below: -2 - r means that rank r waits for the value

  Table const& table_;
  Times const& times_;
  std::ptrdiff_t stride_;
  Grid<double> forward_, gradient_;  // [entries] ends
};

/// A visitor for `play` that keeps when the last action ends. Callers that need no more share this
/// type, and so one copy of the loop.
struct LatestEnd {
  double end_s = 0;
  constexpr void operator()(int, std::size_t, double, double end, double) noexcept {
    if (end > end_s) end_s = end;
  }
};

/// Plays a table in which every index is in range. Each rank runs its row in order; an action
/// starts when its rank is free and its inputs have arrived, an overlapped pair when those of both
/// have. A rank that comes to a reduction waits for the others that take part. Messages are left to
/// `transfers`.
///
/// `visit(rank, index, start, end, given)` is called for each compute action and reduction in
/// the order of its rank; `given` is when its last input was made, without the link. Both actions
/// of a pair are visited with the pair's times.
/// @param transfers  how values reach their readers: `Delays` or `ChannelTransfers`
/// @return [ranks] how far each came; less than the row's length where ranks wait for each other
/// for ever
/// Complexity: linear in the number of actions.
template <class Transfers, class Visit>
constexpr Grid<std::size_t> play(Table const& table, Times const& times, double overlap_s,
                                 Transfers& transfers, Visit& visit) {
  int const ranks = table.ranks();
  Grid<std::size_t> reached(ranks);
  Grid<double> free(ranks);
  ReductionBarriers barriers(table);
  std::vector<int> runnable;
  runnable.reserve(table.row_begin.size() + 1);
  for (int r = ranks; r-- > 0;) runnable.push_back(r);

  while (!runnable.empty()) {
    int const rank = runnable.back();
    runnable.pop_back();
    auto const span = table.row(rank);
    Action const* const row = span.data();
    std::size_t const size = span.size(), begin = table.row_begin.data()[rank];
    std::size_t at = reached[rank];
    double now = free[rank];
    while (at < size) {
      Action const& a = row[at];
      if (a.kind == Kind::reduce_gradient) {
        reached[rank] = at;
        auto const* const barrier = barriers.arrive(a.stage, rank, now);
        if (barrier == nullptr) break;
        now = barrier->start_s + times[a.stage].reduce;
        for (int const other : barrier->ranks) {
          std::size_t const index = reached[other]++;
          visit(other, index, barrier->start_s, now, 0.0);
          transfers.ended(table.row_begin.data()[other] + index, a, now, runnable);
          free[other] = now;
          if (other != rank) runnable.push_back(other);
        }
        ++at;
        continue;
      }
      if constexpr (Transfers::has_messages) {
        if (is_message(a.kind)) {
          ++at;
          continue;
        }
      }
      double given = 0;
      double ready = transfers.arrives(rank, a, given);
      if (ready < 0) break;
      double cost = times[a.stage].of(a.kind);
      bool const pair = a.overlaps_next && at + 1 < size;
      if (pair) {
        Action const& b = row[at + 1];
        double const second = transfers.arrives(rank, b, given);
        if (second < 0) break;
        if (second > ready) ready = second;
        cost = overlap_s < 0 ? cost + times[b.stage].of(b.kind) : overlap_s;
      }
      double const start = ready > now ? ready : now;
      now = start + cost;
      visit(rank, at, start, now, given);
      transfers.ended(begin + at, a, now, runnable);
      ++at;
      if (!pair) continue;
      visit(rank, at, start, now, given);
      transfers.ended(begin + at, row[at], now, runnable);
      ++at;
    }
    reached[rank] = at;
    free[rank] = now;
    transfers.transfer(runnable);
  }
  return reached;
}

/// Plays a table without messages.
template <class Visit>
constexpr Grid<std::size_t> play(Table const& table, Times const& times, double overlap_s,
                                 Visit&& visit) {
  Delays delays(table, times);
  return play(table, times, overlap_s, delays, visit);
}

}  // namespace stagger::schedule::detail
