// SPDX-License-Identifier: Apache-2.0
// mistake: words: `auto step = train.step(make_batch());`: the batch is gone before the step runs (a warning of clang alone)
// remedy: keep the batch in a variable, or run the step at once: `run(train.step(make_batch()))`
// only: clang
// expect-error: temporary whose address is used as value of local variable 'step' will be destroyed
// flags: -Werror=dangling
// see: engine.md#three-ways-to-take-a-step
#include <stagger/stagger.hpp>

#include "half.hpp"

sg::Batch<float, float> make_batch();

int main() {
  auto train = sg::Pipeline{Half{}}.with(Distance{});
  sg::run(train.step(make_batch()));  // this is right
  auto step = train.step(make_batch());
  sg::run(std::move(step));
}
