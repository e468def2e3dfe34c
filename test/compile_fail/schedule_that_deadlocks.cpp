// SPDX-License-Identifier: Apache-2.0
// mistake: table: a schedule that deadlocks
// expect-error: stagger: the schedule is rejected
// expect-error: Rejected<[a-z:]*FaultKind::deadlock, [a-z:]*OnRank<0>, [a-z:]*AtIndex<1>, [a-z:]*Kind::backward, [a-z:]*OfStage<0>, [a-z:]*OfMicrobatch<0>
// expect-error: Waits<[a-z:]*OnRank<0>, [a-z:]*Kind::backward, [a-z:]*OfStage<0>, [a-z:]*OfMicrobatch<0>, [a-z:]*For<[a-z:]*Kind::backward, [a-z:]*OfStage<1>, [a-z:]*OfMicrobatch<0> *> *>
// expect-error: Waits<[a-z:]*OnRank<1>, [a-z:]*Kind::forward, [a-z:]*OfStage<1>, [a-z:]*OfMicrobatch<1>, [a-z:]*For<[a-z:]*Kind::forward, [a-z:]*OfStage<0>, [a-z:]*OfMicrobatch<1>
// see: schedules_own.md#prove-it
#include <stagger/schedule/proof/verify.hpp>

using namespace stagger;
using namespace stagger::schedule;

/// Rank 0 wants a gradient that only its second forward would bring about.
struct Stuck {
  using policy_tag = ScheduleTag;
  static constexpr bool flushes = true;
  constexpr int chunks() const { return 1; }
  constexpr Table table(Shape) const {
    Table t{.stages = 2, .microbatches = 2};
    t.begin_row();
    for (int m = 0; m < 2; ++m) {
      for (auto const kind : {Kind::forward, Kind::backward})
        t.add({.kind = kind, .stage = 0, .microbatch = m});
    }
    t.begin_row();
    for (auto const kind : {Kind::forward, Kind::backward}) {
      for (int m = 0; m < 2; ++m) t.add({.kind = kind, .stage = 1, .microbatch = m});
    }
    return t;
  }
};

static_assert(accepted<verify(Stuck{}, Shape{2, 2})>);
