// SPDX-License-Identifier: Apache-2.0
// mistake: loss: a loss for another output
// expect-error: stagger: the loss does not accept the Output of the last stage
// see: stages.md#the-loss
#include <stagger/stagger.hpp>

#include "half.hpp"

int main() {
  auto train = sg::Pipeline{Half{}, Half{}}.with(sg::loss::MeanSquaredError<>{});
  sg::Batch<float, sg::Tensor<float>> batch{{1}, {{}}};
  sg::run(train.step(batch));
}
