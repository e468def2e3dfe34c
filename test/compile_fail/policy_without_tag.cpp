// SPDX-License-Identifier: Apache-2.0
// mistake: policy: a schedule without `policy_tag`
// expect-error: stagger: an argument of with\(\) is not a policy: it needs a policy_tag
// see: schedules_own.md
#include <stagger/stagger.hpp>

#include "half.hpp"

struct Mine {
  static constexpr bool flushes = true;
  int chunks() const { return 1; }
  sg::schedule::Table table(sg::Shape s) const { return sg::schedule::GPipe{}.table(s); }
};

int main() { auto train = sg::Pipeline{Half{}, Half{}}.with(Mine{}, Distance{}); }
