// SPDX-License-Identifier: Apache-2.0
// mistake: step: `step` with an asynchronous staleness model
// expect-error: stagger: with an asynchronous staleness model there is no step
// see: engine.md#several-owners-slices-streams
#include <stagger/stagger.hpp>

#include "half.hpp"

int main() {
  auto train = sg::Pipeline{Half{}, Half{}}.with(sg::staleness::WeightStashing{}, Distance{});
  sg::Batch<float, float> const batch{{1}, {1}};
  sg::run(train.step(batch));
}
