// SPDX-License-Identifier: Apache-2.0
// mistake: step: inputs and targets as two arguments
// expect-error: stagger: a step takes inputs and targets together: give it one Batch
// see: getting_started.md
#include <stagger/stagger.hpp>

#include <vector>

#include "half.hpp"

int main() {
  auto train = sg::Pipeline{Half{}, Half{}}.with(Distance{});
  sg::Batch<float, float> const batch{{1}, {1}};
  sg::run(train.step(batch, sg::stop_token{}));  // this is right
  sg::run(train.step(batch.inputs, batch.targets));
}
