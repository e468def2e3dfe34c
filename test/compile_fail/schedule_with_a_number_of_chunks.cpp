// SPDX-License-Identifier: Apache-2.0
// mistake: policy: `chunks` is a number instead of a function
// expect-error: stagger: not a SchedulePolicy: it needs a function 'int chunks\(\) const'
// see: schedules_own.md
#include <stagger/stagger.hpp>

#include "half.hpp"

struct Mine {
  using policy_tag = sg::ScheduleTag;
  static constexpr bool flushes = true;
  int chunks = 1;
  sg::schedule::Table table(sg::Shape s) const { return sg::schedule::GPipe{}.table(s); }
};

int main() { auto train = sg::Pipeline{Half{}, Half{}}.with(Mine{}, Distance{}); }
