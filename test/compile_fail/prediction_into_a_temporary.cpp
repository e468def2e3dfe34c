// SPDX-License-Identifier: Apache-2.0
// mistake: step: `predict` into a temporary
// expect-error: stagger: what is predicted would be written to a temporary that nobody can read
// flags: -DINPUTS=inputs
// flags: -DINPUTS=made()
// see: stages.md#the-smallest-one
#include <stagger/stagger.hpp>

#include "half.hpp"

std::vector<float> made() { return {1}; }
int main() {
  auto train = sg::Pipeline{Half{}, Half{}}.with(Distance{});
  std::vector<float> const inputs{1};
  sg::run(train.predict(INPUTS, std::vector<float>(1)));
}
