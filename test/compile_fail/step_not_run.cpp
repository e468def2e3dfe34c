// SPDX-License-Identifier: Apache-2.0
// mistake: step: `.loss` of a step that was not run
// expect-error: stagger: a step that was not run has no loss: run it first
// see: getting_started.md
#include <stagger/stagger.hpp>

#include "half.hpp"

int main() {
  auto train = sg::Pipeline{Half{}, Half{}}.with(Distance{});
  sg::Batch<float, float> const batch{{1}, {1}};
  double const loss = train.step(batch).loss;
}
