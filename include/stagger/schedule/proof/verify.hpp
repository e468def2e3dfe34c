// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The proof that a table is legal, or its first fault: at compile time, in a test, or for
///         a table that came from a file.

#include <cstddef>
#include <type_traits>
#include <utility>

#include <stagger/schedule/fault.hpp>
#include <stagger/schedule/policy.hpp>
#include <stagger/schedule/proof/channels.hpp>
#include <stagger/schedule/proof/detail/check.hpp>
#include <stagger/schedule/proof/detail/play.hpp>
#include <stagger/schedule/proof/detail/standstill.hpp>
#include <stagger/schedule/table_of.hpp>

namespace stagger::schedule {

/// The conditions under which a table is verified.
struct VerifyOptions {
  Channels channels = Channels::per_peer;  ///< for tables with messages
  int in_flight = 0;  ///< most (stage, microbatch) pairs a rank may hold; 0: no limit
};

/// Plays all ranks of a table against each other and returns the first fault. A `Fault` that
/// converts to false proves that every action is there exactly once and in data order, that each
/// stage is on one rank (or in the bidirectional form), that messages are matched and in order,
/// that nothing waits for ever, and that no rank holds more than the limit. A stage's reduction
/// stands after its last gradient, on every rank that holds the stage or on none.
///
/// Takes tables of compute actions and tables with messages, and either with reductions. Linear in
/// the number of actions.
[[nodiscard]] constexpr Fault verify(Table const& table, VerifyOptions options = {}) {
  detail::Checked checked{table};
  if (Fault const f = detail::check(checked)) return f;
  detail::Times const times = detail::stage_times(table, Costs{});
  detail::LatestEnd latest;
  Fault stuck{};
  if (checked.has_messages) {
    detail::ChannelTransfers transfers(table, times, options.channels);
    detail::play(table, times, -1, transfers, latest);
    stuck = detail::standstill(table, transfers);
  } else {
    stuck = detail::standstill(table, detail::play(table, times, -1, latest));
  }
  if (stuck || options.in_flight <= 0) return stuck;
  return detail::check_in_flight(table, options.in_flight);
}

/// Verifies the table that a policy makes for a shape; the form to use in a `static_assert`.
/// @throws Error bad_configuration when the policy refuses the shape
template <SchedulePolicy Policy>
[[nodiscard]] constexpr Fault verify(Policy const& policy, Shape shape,
                                     VerifyOptions options = {}) {
  Table const table = policy.table(shape);
  return verify(table, options);
}

/// Names for the numbers of a fault, so that a compiler's output says which is which.
template <int> struct OnRank;
template <int> struct AtIndex;
template <int> struct OfStage;
template <int> struct OfMicrobatch;

template <class Rank, Kind Action, class Stage, class Microbatch, class For> struct Waits;
template <Kind Action, class Stage, class Microbatch> struct For;

/// Fails to compile, with the fault in its name, unless there is none.
template <FaultKind Fault, class Rank, class Index, Kind Action, class Stage, class Microbatch,
          class... Cycle>
struct Rejected {
  static_assert(Fault == FaultKind::none,
                "stagger: the schedule is rejected; the kind of fault, its rank, index, action, "
                "stage and microbatch stand in the name of Rejected<...>, and the waits of a "
                "deadlock");
  static constexpr bool value = true;
};

namespace detail {

// Only declared: a function with the error inside would be a second error.
template <Fault F, std::size_t... I>
auto named(std::index_sequence<I...>) -> std::type_identity<
    Rejected<F.kind, OnRank<F.rank>, AtIndex<F.index>, F.action.kind, OfStage<F.action.stage>,
             OfMicrobatch<F.action.microbatch>,
             Waits<OnRank<F.cycle[I].rank>, F.cycle[I].action.kind,
                   OfStage<F.cycle[I].action.stage>, OfMicrobatch<F.cycle[I].action.microbatch>,
                   For<F.cycle[I].needs.kind, OfStage<F.cycle[I].needs.stage>,
                       OfMicrobatch<F.cycle[I].needs.microbatch>>>...>>;

}  // namespace detail

/// `static_assert(accepted<verify(OneFOneB{}, Shape{4, 8})>)`: the compiler prints the fault's
/// kind, rank, index, action kind, stage and microbatch, and the waits of a deadlock.
template <Fault F>
inline constexpr bool accepted = decltype(detail::named<F>(
    std::make_index_sequence<static_cast<std::size_t>(F.held())>{}))::type::value;

#ifdef STAGGER_SEPARATE_COMPILATION
extern template void detail::require_legal(Table const&);
#endif

}  // namespace stagger::schedule
