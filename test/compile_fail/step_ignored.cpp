// SPDX-License-Identifier: Apache-2.0
// mistake: step: `train.step(batch);`, which is not run (a warning)
// expect-error: stagger: a step does nothing until it is run
// flags: -Werror=unused-result
// see: getting_started.md
#include <stagger/stagger.hpp>

#include "half.hpp"

int main() {
  auto train = sg::Pipeline{Half{}, Half{}}.with(Distance{});
  sg::Batch<float, float> const batch{{1}, {1}};
  train.step(batch);
}
