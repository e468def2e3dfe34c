// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   What a compiler prints of a schedule that is rejected.

#include <stagger/schedule/fault.hpp>

namespace stagger::schedule {

/// Words for the numbers of a fault, so that a compiler's output says which is which.
template <int> struct OnRank;
template <int> struct AtPosition;
template <int> struct OfStage;
template <int> struct OfMicrobatch;

/// Fails to compile, with the fault in its name, unless there is none.
template <FaultKind Fault, class Rank, class Position, Kind Action, class Stage, class Microbatch>
struct Rejected {
  static_assert(Fault == FaultKind::none,
                "stagger: the schedule is rejected; the kind of fault, its rank, position, action, "
                "stage and microbatch stand in the name of Rejected<...>");
  static constexpr bool value = true;
};

/// `static_assert(accepted<verify(OneFOneB{}, Shape{4, 8})>)`: the compiler prints the fault's
/// kind, rank, position, action kind, stage and microbatch.
template <Fault F>
inline constexpr bool accepted =
    Rejected<F.kind, OnRank<F.rank>, AtPosition<F.position>, F.action.kind, OfStage<F.action.stage>,
             OfMicrobatch<F.action.microbatch>>::value;

}  // namespace stagger::schedule
