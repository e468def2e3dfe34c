// SPDX-License-Identifier: Apache-2.0
// mistake: table: a schedule that leaves out an action
// expect-error: stagger: the schedule is rejected
// expect-error: Rejected<[a-z:]*FaultKind::missing, [a-z:]*OnRank<1>, [a-z:]*AtIndex<5>, [a-z:]*Kind::backward_weight, [a-z:]*OfStage<1>, [a-z:]*OfMicrobatch<1>
// see: schedules_own.md#prove-it
#include <stagger/schedule/proof/verify.hpp>
#include <stagger/schedule/zero_bubble_h1.hpp>

using namespace stagger;
using namespace stagger::schedule;

/// The last weight gradient of rank 1 is forgotten.
struct Gap {
  using policy_tag = ScheduleTag;
  static constexpr bool flushes = true;
  constexpr int chunks() const { return 1; }
  constexpr Table table(Shape shape) const {
    Table t = ZeroBubbleH1{}.table(shape);
    t.actions.pop_back();
    return t;
  }
};

static_assert(accepted<verify(Gap{}, Shape{2, 2})>);
