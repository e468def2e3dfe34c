// SPDX-License-Identifier: Apache-2.0
// mistake: policy: `schedule::Named` without its header
// expect-error: incomplete type
// expect-error: // stagger: include <stagger/schedule/named.hpp>
// errors: 1
// see: schedules.md
#include <stagger/stagger.hpp>

#include "half.hpp"

int main() {
  auto train = sg::Pipeline{Half{}, Half{}}.with(Distance{}, sg::schedule::Named{"zb-h1"});
  sg::run(train.step(sg::Batch<float, float>{{1}, {1}}));
}
