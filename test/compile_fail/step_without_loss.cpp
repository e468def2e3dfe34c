// SPDX-License-Identifier: Apache-2.0
// mistake: step: no loss
// expect-error: stagger: a step needs a loss; give Pipeline::with one, such as
// see: stages.md#the-loss
#include <stagger/stagger.hpp>

#include "half.hpp"

int main() {
  auto train = sg::Pipeline{Half{}, Half{}}.with(sg::schedule::GPipe{});
  sg::Batch<float, float> batch{{1}, {1}};
  sg::run(train.step(batch));
}
