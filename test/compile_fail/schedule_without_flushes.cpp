// SPDX-License-Identifier: Apache-2.0
// mistake: policy: a schedule without `flushes`
// expect-error: stagger: not a SchedulePolicy: it needs 'static constexpr bool flushes'
// see: schedules_own.md
#include <stagger/stagger.hpp>

#include "half.hpp"

struct Mine {
  using policy_tag = sg::ScheduleTag;
  int chunks() const { return 1; }
  sg::schedule::Table table(sg::Shape s) const { return sg::schedule::GPipe{}.table(s); }
};

int main() { auto train = sg::Pipeline{Half{}, Half{}}.with(Mine{}, Distance{}); }
