// SPDX-License-Identifier: Apache-2.0
// mistake: step: a batch of other targets
// expect-error: stagger: the batch's targets are not the Target of the loss
// see: stages.md#the-loss
#include <stagger/stagger.hpp>

#include "half.hpp"

int main() {
  auto train = sg::Pipeline{Half{}, Half{}}.with(Distance{});
  sg::Batch<float, double> batch{{1}, {1}};
  sg::run(train.step(batch));
}
