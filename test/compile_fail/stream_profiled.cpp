// SPDX-License-Identifier: Apache-2.0
// mistake: step: `Profiler::measure` with an asynchronous staleness model
// expect-error: stagger: a profiler measures steps, which a pipeline with an asynchronous staleness model does not take
// see: combinations.md
#include <stagger/stagger.hpp>
#include <stagger/train/profiler.hpp>

#include "half.hpp"

int main() {
  auto train = sg::Pipeline{Half{}, Half{}}.with(sg::staleness::WeightStashing{}, Distance{});
  sg::Batch<float, float> const batch{{1}, {1}};
  return static_cast<int>(sg::Profiler{}.measure(train, batch).size());
}
