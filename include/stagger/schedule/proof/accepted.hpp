// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The types by whose names a compiler prints the fault of a rejected schedule.

#include <cstddef>
#include <type_traits>
#include <utility>

#include <stagger/schedule/fault.hpp>

namespace stagger::schedule {

/// Names for the numbers of a fault, so that a compiler's output says which is which.
template <int> struct OnRank;
template <int> struct AtPosition;
template <int> struct OfStage;
template <int> struct OfMicrobatch;

template <class Rank, Kind Action, class Stage, class Microbatch, class For> struct Waits;
template <Kind Action, class Stage, class Microbatch> struct For;

/// Fails to compile, with the fault in its name, unless there is none.
template <FaultKind Fault, class Rank, class Position, Kind Action, class Stage, class Microbatch,
          class... Cycle>
struct Rejected {
  static_assert(Fault == FaultKind::none,
                "stagger: the schedule is rejected; the kind of fault, its rank, position, action, "
                "stage and microbatch stand in the name of Rejected<...>, and the waits of a "
                "deadlock");
  static constexpr bool value = true;
};

namespace detail {

// Only declared: a function with the error inside would be a second error.
template <Fault F, std::size_t... I>
auto named(std::index_sequence<I...>) -> std::type_identity<
    Rejected<F.kind, OnRank<F.rank>, AtPosition<F.position>, F.action.kind, OfStage<F.action.stage>,
             OfMicrobatch<F.action.microbatch>,
             Waits<OnRank<F.cycle[I].rank>, F.cycle[I].action.kind,
                   OfStage<F.cycle[I].action.stage>, OfMicrobatch<F.cycle[I].action.microbatch>,
                   For<F.cycle[I].needs.kind, OfStage<F.cycle[I].needs.stage>,
                       OfMicrobatch<F.cycle[I].needs.microbatch>>>...>>;

}  // namespace detail

/// `static_assert(accepted<verify(OneFOneB{}, Shape{4, 8})>)`: the compiler prints the fault's
/// kind, rank, position, action kind, stage and microbatch, and the waits of a deadlock.
template <Fault F>
inline constexpr bool accepted = decltype(detail::named<F>(
    std::make_index_sequence<static_cast<std::size_t>(F.held())>{}))::type::value;

}  // namespace stagger::schedule
