// SPDX-License-Identifier: Apache-2.0
// mistake: step: a trainer that is const
// expect-error: stagger: this trainer is const, but a step changes it
// see: getting_started.md
#include <stagger/stagger.hpp>

#include "half.hpp"

int main() {
  auto const train = sg::Pipeline{Half{}, Half{}}.with(Distance{});
  sg::Batch<float, float> const batch{{1}, {1}};
  sg::run(train.step(batch));
}
