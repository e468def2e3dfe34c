// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The reason why a table cannot be played to its end: the ranks that wait for each other,
///         or what is missing.

#include <cstddef>
#include <span>

#include <stagger/core/grid.hpp>
#include <stagger/schedule/fault.hpp>
#include <stagger/schedule/proof/channels.hpp>
#include <stagger/schedule/table.hpp>

namespace stagger::schedule::detail {

/// Follows waits from one to the next until it finds their cycle.
/// @param first  something that never ran
/// @param held   what each number waits for; the same for the same number
template <class F> [[nodiscard]] constexpr Fault cycle_of_waits(std::size_t first, F&& held) {
  std::size_t slow = first, fast = first;
  do {
    for (int step = 0; step < 2; ++step) {
      Held const at = held(fast);
      if (at.next == Held::nowhere)
        return {.kind = FaultKind::missing, .rank = -1, .index = -1, .action = at.wait.needs};
      fast = at.next;
    }
    slow = held(slow).next;
  } while (slow != fast);
  std::size_t begin = slow;  // the lowest of the cycle
  for (std::size_t at = held(slow).next; at != slow; at = held(at).next) {
    if (at < begin) begin = at;
  }
  Fault fault{.kind = FaultKind::deadlock};
  std::size_t at = begin;
  do {
    Held const here = held(at);
    if (fault.waits++ < static_cast<int>(fault.cycle.size()))
      fault.cycle.data()[fault.waits - 1] = here.wait;
    at = here.next;
  } while (at != begin);
  fault.rank = fault.cycle[0].rank;
  fault.index = fault.cycle[0].index;
  fault.action = fault.cycle[0].action;
  return fault;
}

/// Names the pair without which a deadlock would not be: one whose second action waits, while its
/// first one is waited for.
/// @param row  the actions of a rank
template <class Row> [[nodiscard]] constexpr Fault with_pair(Fault fault, Row&& row) {
  for (int k = 0; k < fault.held(); ++k) {
    int const before = (k + fault.waits - 1) % fault.waits;
    Wait const& wait = fault.cycle.data()[k];
    if (wait.index < 1 || before >= fault.held()) continue;
    Action const first = row(wait.rank)[static_cast<std::size_t>(wait.index) - 1];
    if (first.overlaps_next && first == fault.cycle.data()[before].needs) fault.pair = k;
  }
  return fault;
}

/// The deadlock of compute rows in which rank r came no further than index `reached(r)`; none
/// where all came to the end.
/// @param row  the actions of a rank
template <class Row, class Reached>
[[nodiscard]] constexpr Fault standstill(int ranks, int stages, Row&& row, Reached&& reached) {
  // Makes `held` wait for the action that `is` accepts; true when that has not run yet.
  auto const lacks = [&](Held& held, int rank, std::size_t at, auto const& is) {
    for (int q = 0; q < ranks; ++q) {
      std::span<Action const> const other = row(q);
      for (std::size_t i = 0; i < other.size(); ++i) {
        if ((q == rank && i == at) || !is(other[i])) continue;
        held.wait.needs = other[i];
        held.next = static_cast<std::size_t>(q);
        if (other[i].kind != Kind::reduce_gradient) return i >= reached(q);
        if (i > reached(q)) return true;
      }
    }
    return held.next == Held::nowhere;
  };
  auto const waits = [&](std::size_t number) {
    int const rank = static_cast<int>(number);
    std::span<Action const> const mine = row(rank);
    std::size_t const begin = reached(rank);
    std::size_t const end = begin + 1 < mine.size() && mine[begin].overlaps_next ? 2 : 1;
    for (std::size_t at = begin; at < begin + end; ++at) {
      Action const& a = mine[at];
      Held held{.wait = {.rank = rank, .index = static_cast<int>(at), .action = a, .needs = a}};
      auto const value = [&](bool forward, int stage) {
        held.next = Held::nowhere;
        held.wait.needs = {.kind = forward ? Kind::forward : Kind::backward,
                           .stage = stage,
                           .microbatch = a.microbatch,
                           .slice = a.slice};
        return lacks(held, rank, at, [&](Action const& b) {
          return b.stage == stage && b.microbatch == a.microbatch && b.slice == a.slice &&
                 (forward ? b.kind == Kind::forward : gives_input_gradient(b.kind));
        });
      };
      bool stuck = false;
      if (a.kind == Kind::reduce_gradient) {
        stuck = lacks(held, rank, at, [&](Action const& b) {
          return b.kind == Kind::reduce_gradient && b.stage == a.stage;
        });
      } else if (a.kind == Kind::forward) {
        stuck = a.stage > 0 && value(true, a.stage - 1);
      } else if (a.kind == Kind::backward_weight) {
        stuck = value(false, a.stage);
      } else {
        stuck = value(true, a.stage) || (a.stage + 1 < stages && value(false, a.stage + 1));
      }
      if (stuck) return held;
    }
    return Held{};
  };
  for (int r = 0; r < ranks; ++r) {
    if (reached(r) < row(r).size())
      return with_pair(cycle_of_waits(static_cast<std::size_t>(r), waits), row);
  }
  return {};
}

/// The deadlock of a compute table in which rank r came no further than index `reached[r]`.
[[nodiscard]] constexpr Fault standstill(Table const& table, Grid<std::size_t> const& reached) {
  return standstill(
      table.ranks(), table.stages, [&](int r) { return table.row(r); },
      [&](int r) { return reached[r]; });
}

/// Likewise where messages were played.
[[nodiscard]] constexpr Fault standstill(Table const& table, ChannelTransfers const& transfers) {
  for (int r = 0; r < table.ranks(); ++r) {
    std::size_t const first = transfers.first_left(r, true);
    if (first == table.actions.size()) continue;
    return with_pair(
        cycle_of_waits(first, [&](std::size_t index) { return transfers.hold(index); }),
        [&](int rank) { return table.row(rank); });
  }
  return {};
}

}  // namespace stagger::schedule::detail
