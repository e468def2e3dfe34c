// SPDX-License-Identifier: Apache-2.0
// mistake: step: `predict` from values of another type
// expect-error: stagger: what is predicted from must be a std::vector or another span of the Input
// see: stages.md#the-smallest-one
#include <stagger/stagger.hpp>

#include "half.hpp"

int main() {
  auto train = sg::Pipeline{Half{}, Half{}}.with(Distance{});
  std::vector<double> const inputs{1};
  std::vector<float> outputs(1);
  sg::run(train.predict(inputs, outputs));
}
