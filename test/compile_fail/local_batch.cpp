// SPDX-License-Identifier: Apache-2.0
// mistake: words: `return train.step(batch);` of a local batch: it is gone before the step runs (a warning of clang alone)
// remedy: move the batch into the step, `train.step(std::move(batch))`, or run the step where the batch lives
// only: clang
// expect-error: address of stack memory associated with local variable 'batch' returned
// flags: -Werror=return-stack-address
// see: engine.md#three-ways-to-take-a-step
#include <stagger/stagger.hpp>

#include "half.hpp"

sg::Batch<float, float> make_batch();

sg::Step later(auto& train, bool keep) {
  auto batch = make_batch();
  if (keep) return train.step(std::move(batch));  // this is right
  return train.step(batch);
}

int main() {
  auto train = sg::Pipeline{Half{}}.with(Distance{});
  sg::run(later(train, false));
}
