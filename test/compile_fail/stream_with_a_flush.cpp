// SPDX-License-Identifier: Apache-2.0
// mistake: step: `stream` with a synchronous staleness model
// expect-error: stagger: a stream needs an asynchronous staleness model, such as staleness::WeightStashing
// see: engine.md#several-owners-slices-streams
#include <stagger/stagger.hpp>

#include "half.hpp"

int main() {
  auto train = sg::Pipeline{Half{}, Half{}}.with(Distance{});
  sg::Batch<float, float> const batch{{1}, {1}};
  sg::run(train.stream(batch));
}
