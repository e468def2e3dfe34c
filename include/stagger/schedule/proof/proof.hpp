// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The proof of large tables at compile time: rows and play are cut into constant
///         evaluations of their own, so that no compiler's default limit is met.
///         `static_assert(accepted<proof<OneFOneB{}, Shape{64, 256}>>)`.

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>

#include <stagger/schedule/policy.hpp>
#include <stagger/schedule/proof/verify.hpp>

namespace stagger::schedule {

namespace detail {

/// One row of a policy's table, made where the policy can make it alone.
template <auto Policy, Shape S> [[nodiscard]] constexpr Table table_with_row(int rank) {
  if constexpr (requires { Policy.rows(S, 0, 1); }) {
    return Policy.rows(S, rank, rank + 1);
  } else {
    Table const whole = Policy.table(S);
    Table one = whole.like(whole.row(rank).size());
    one.add_row(whole.row(rank));
    return one;
  }
}

template <auto Policy, Shape S>
inline constexpr int slices_of = table_with_row<Policy, S>(0).slices;

/// More than any complete row holds: F, I and W of everything and a reduction of each stage, on two
/// stages in the bidirectional form.
template <auto Policy, Shape S>
inline constexpr std::size_t most_actions{S.chunks *
                                          (2 + 4 * S.microbatches * slices_of<Policy, S>)};

template <auto Policy, Shape S, int Rank> struct ProofRow {
  struct Made {
    Action actions[most_actions<Policy, S>]{};
    int size = 0;
  };
  static constexpr Made make() {
    Table const t = table_with_row<Policy, S>(Rank);
    Made row{};
    for (Action const& a : t.actions) row.actions[row.size++] = a;
    return row;
  }
  static constexpr Made made = make();
};

/// Where a proof stands between two parts.
template <int Stages, int Microbatches, int Ranks> struct ProofState {
  static constexpr std::size_t entry_count = std::size_t{Stages} * std::size_t{Microbatches};
  // A stage may belong to two ranks, each with half of its microbatches.
  static constexpr std::size_t owner_count = 2 * std::size_t{Stages};
  static constexpr std::size_t rank_count = std::size_t{Ranks};
  // Plain arrays: a compiler evaluates each operator[] of std::array as a call.
  std::uint16_t forward_at[entry_count]{};   // index in its row + 1; 0: not run
  std::uint16_t gradient_at[entry_count]{};  // of B or I
  bool weighed[entry_count]{};
  int cursor[rank_count]{};
  int live[rank_count]{};
  int owner[owner_count]{};             // rank + 1, for each half of the microbatches
  std::uint8_t reduced[owner_count]{};  // 0: not yet, 1: the rank has reached it, 2: done
  int last_forward[owner_count]{}, last_gradient[owner_count]{};
  int forwards = 0, gradients = 0, weights = 0;
  int rank = 0, step = 1;  // the next rank to look at, and the direction of the sweep
  int blocked = 0;         // ranks in a row that did not move
  bool finished = false;
  Fault fault{};
};

template <auto Policy, Shape S, int Limit> struct Prover {
  static constexpr int slices = slices_of<Policy, S>;
  static constexpr int columns = S.microbatches * slices;
  using State = ProofState<S.stages(), columns, S.ranks>;
  struct View {
    Action const* begin;
    int size;
  };
  struct Views {
    View of[std::size_t{S.ranks}];
  };

  template <int... Rank> static constexpr Views views(std::integer_sequence<int, Rank...>) {
    return {
        {View{ProofRow<Policy, S, Rank>::made.actions, ProofRow<Policy, S, Rank>::made.size}...}};
  }
  static constexpr Views rows = views(std::make_integer_sequence<int, S.ranks>{});

  /// Rank 0 works on the first and on the last stage of P: the bidirectional form, or no form at
  /// all.
  static constexpr bool two_ways = [] {
    if (S.chunks != 1 || S.ranks < 2) return false;
    for (int i = 0; i < rows.of[0].size; ++i) {
      if (rows.of[0].begin[i].stage == S.ranks - 1) return true;
    }
    return false;
  }();

  /// Adds up a stage's gradients, after all that a rank does to it; two holders wait for each
  /// other.
  static constexpr FaultKind reduce(State& state, int rank, Action const& a) {
    int const stage = 2 * a.stage;
    int const half = state.owner[stage] == rank + 1 ? stage : stage + 1;
    int const other = 2 * stage + 1 - half;
    if (state.owner[half] != rank + 1) return FaultKind::placement;
    if (state.reduced[half] == 2) return FaultKind::duplicate;
    state.reduced[half] = 1;
    if (state.owner[other] == rank + 1)
      state.reduced[other] = 2;
    else if (two_ways && state.reduced[other] == 0)
      return FaultKind::deadlock;
    state.reduced[half] = 2;
    return FaultKind::none;
  }

  /// Runs an action, or says why it cannot run: deadlock when its input is not there yet, else what
  /// is wrong with it. One function, since compilers pay for each call.
  /// @param test  of the first action of a pair: everything but to run it
  static constexpr FaultKind take(State& state, int rank, int at, Action const& a, bool test) {
    if (a.stage < 0 || a.stage >= S.stages() || a.microbatch < 0 ||
        a.microbatch >= S.microbatches || a.slice < 0 || a.slice >= slices) {
      return FaultKind::out_of_range;
    }
    if (is_message(a.kind)) return FaultKind::parse;
    if (a.kind == Kind::reduce_gradient) return reduce(state, rank, a);
    bool const second_half = two_ways && a.microbatch >= S.microbatches / 2;
    int const half = 2 * a.stage + (second_half ? 1 : 0);
    if (state.owner[half] != rank + 1) {
      if (state.owner[half] != 0) return FaultKind::placement;
      if (two_ways && rank != (second_half ? S.ranks - 1 - a.stage : a.stage))
        return FaultKind::placement;
      state.owner[half] = rank + 1;
    }
    if (state.reduced[half] != 0) return FaultKind::order;
    int const c = a.stage * columns + a.microbatch * slices + a.slice;
    if (a.kind == Kind::forward) {
      if (state.forward_at[c] != 0) return FaultKind::duplicate;
      if (slices > 1 && a.slice > 0 && state.forward_at[c - 1] == 0) return FaultKind::order;
      if (a.stage > 0) {
        int const given = state.forward_at[c - columns];
        if (given == 0) return FaultKind::deadlock;
        if (given < state.last_forward[half]) return FaultKind::message_order;
        if (!test) state.last_forward[half] = given;
      }
      if (test) return FaultKind::none;
      state.forward_at[c] = static_cast<std::uint16_t>(at + 1);
      ++state.forwards;
      ++state.live[rank];
      return FaultKind::none;
    }
    if (a.kind == Kind::backward_weight) {
      if (state.weighed[c]) return FaultKind::duplicate;
      if (state.gradient_at[c] == 0) return FaultKind::order;
    } else {
      if (state.gradient_at[c] != 0) return FaultKind::duplicate;
      if (state.forward_at[c] == 0) return FaultKind::order;
      if (slices > 1 && a.slice + 1 < slices && state.gradient_at[c + 1] == 0)
        return FaultKind::order;
      if (a.stage + 1 < S.stages()) {
        int const given = state.gradient_at[c + columns];
        if (given == 0) return FaultKind::deadlock;
        if (given < state.last_gradient[half]) return FaultKind::message_order;
        if (!test) state.last_gradient[half] = given;
      }
      if (test) return FaultKind::none;
      state.gradient_at[c] = static_cast<std::uint16_t>(at + 1);
      ++state.gradients;
      if (a.kind == Kind::backward_input) return FaultKind::none;
    }
    if (test) return FaultKind::none;
    state.weighed[c] = true;
    ++state.weights;
    --state.live[rank];
    return FaultKind::none;
  }

  static constexpr void stop(State& state, FaultKind kind, int rank, int at, Action const& a) {
    state.fault = {.kind = kind, .rank = rank, .index = at, .action = a};
    state.finished = true;
  }

  /// Goes on with a proof for this many steps, each a look at a rank or an action.
  static constexpr State advance(State state, int budget) {
    while (budget > 0 && !state.finished) {
      int const rank = state.rank;
      View const row = rows.of[rank];
      if (row.size == 0 || row.size > 65000) {
        stop(state, row.size == 0 ? FaultKind::missing : FaultKind::parse, rank, 0,
             Action{.stage = rank % S.stages()});
        break;
      }
      int& at = state.cursor[rank];
      bool moved = false;
      while (at < row.size && budget > 0) {
        --budget;
        Action const& a = row.begin[at];
        bool const pair = a.overlaps_next;
        if (pair && (at + 1 == row.size || !can_overlap(a, row.begin[at + 1]))) {
          stop(state, FaultKind::parse, rank, at, a);
          break;
        }
        int const before = state.live[rank];
        FaultKind kind = FaultKind::none;
        if (pair) {
          kind = take(state, rank, at, a, true);
          if (kind == FaultKind::none) kind = take(state, rank, at + 1, row.begin[at + 1], false);
        }
        if (kind == FaultKind::none) kind = take(state, rank, at, a, false);
        if (kind == FaultKind::deadlock) break;
        int const most = pair ? before + 1 : state.live[rank];
        if (kind == FaultKind::none && Limit > 0 && most > Limit) kind = FaultKind::memory;
        if (kind != FaultKind::none) {
          stop(state, kind, rank, at, a);
          break;
        }
        at += pair ? 2 : 1;
        moved = true;
      }
      if (state.finished || (at < row.size && budget == 0)) break;
      --budget;
      state.blocked = moved ? 0 : state.blocked + 1;
      if (state.blocked > 2 * S.ranks) end(state);
      if (rank + state.step < 0 || rank + state.step >= S.ranks) {
        state.step = -state.step;
      } else {
        state.rank += state.step;
      }
    }
    return state;
  }

  /// Nothing moves any more: all is done, or something is missing or stuck.
  static constexpr void end(State& state) {
    state.finished = true;
    state.fault = standstill(
        S.ranks, S.stages(),
        [](int r) {
          return std::span<Action const>{rows.of[r].begin, rows.of[r].begin + rows.of[r].size};
        },
        [&](int r) { return static_cast<std::size_t>(state.cursor[r]); });
    if (state.fault) return;
    bool backwards = state.gradients + state.weights > 0;
    for (std::uint8_t const reduced : state.reduced) backwards = backwards || reduced != 0;
    if (state.forwards == S.stages() * columns &&
        (!backwards || (state.gradients == state.forwards && state.weights == state.forwards)))
      return;
    for (int c = 0; c < S.stages() * columns; ++c) {
      Kind const kind = state.forward_at[c] == 0    ? Kind::forward
                        : state.gradient_at[c] == 0 ? Kind::backward
                                                    : Kind::backward_weight;
      if (state.forward_at[c] != 0 &&
          (!backwards || (state.gradient_at[c] != 0 && state.weighed[c])))
        continue;
      stop(state, FaultKind::missing, -1, -1,
           Action{.kind = kind,
                  .stage = c / columns,
                  .microbatch = c % columns / slices,
                  .slice = static_cast<std::int16_t>(c % slices)});
      return;
    }
  }

  template <int Part> struct Step {
    static constexpr State before() {
      if constexpr (Part == 0) {
        return State{};
      } else {
        return Step<Part - 1>::state;
      }
    }
    static constexpr State state = advance(before(), 4000);
  };

  template <int Part = 0> static constexpr Fault result() {
    if constexpr (Step<Part>::state.finished) {
      return Step<Part>::state.fault;
    } else {
      return result<Part + 1>();
    }
  }
};

}  // namespace detail

/// The first fault of a policy's table; a policy must be usable as a template argument, as all are
/// that hold no costs. Finds the same tables legal as `verify`; where one has several faults, it
/// may name another one first.
/// @tparam InFlight  most (stage, microbatch) pairs a rank may hold; 0: no limit
template <auto Policy, Shape S, int InFlight = 0>
  requires SchedulePolicy<std::remove_const_t<decltype(Policy)>>
inline constexpr Fault proof = detail::Prover<Policy, S, InFlight>::result();

}  // namespace stagger::schedule
