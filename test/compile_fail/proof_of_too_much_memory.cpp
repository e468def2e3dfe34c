// SPDX-License-Identifier: Apache-2.0
// mistake: table: a proof of less memory than the schedule takes
// expect-error: stagger: the schedule is rejected
// expect-error: Rejected<[a-z:]*FaultKind::memory, [a-z:]*OnRank<0>, [a-z:]*AtIndex<3>, [a-z:]*Kind::forward, [a-z:]*OfStage<0>, [a-z:]*OfMicrobatch<3>
// see: schedules_own.md#prove-it
#include <stagger/schedule/one_f_one_b.hpp>
#include <stagger/schedule/proof/proof.hpp>

using namespace stagger;
using namespace stagger::schedule;

// Rank 0 of four holds four microbatches.
static_assert(accepted<proof<OneFOneB{}, Shape{4, 8}, 3>>);
