// SPDX-License-Identifier: Apache-2.0
// mistake: step: a batch of another input
// expect-error: stagger: the batch's inputs are not the Input of the first stage
// see: stages.md#the-smallest-one
#include <stagger/stagger.hpp>

#include "half.hpp"

int main() {
  auto train = sg::Pipeline{Half{}, Half{}}.with(Distance{});
  sg::Batch<double, float> const batch{{1}, {1}};
  sg::run(train.step(batch));
}
