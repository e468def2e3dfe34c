// SPDX-License-Identifier: Apache-2.0
// mistake: policy: `table` is not const
// expect-error: stagger: not a SchedulePolicy: it needs 'schedule::Table table\(Shape\) const'
// see: schedules_own.md
#include <stagger/stagger.hpp>

#include "half.hpp"

struct Mine {
  using policy_tag = sg::ScheduleTag;
  static constexpr bool flushes = true;
  int chunks() const { return 1; }
  sg::schedule::Table table(sg::Shape s) { return sg::schedule::GPipe{}.table(s); }
};

int main() { auto train = sg::Pipeline{Half{}, Half{}}.with(Mine{}, Distance{}); }
