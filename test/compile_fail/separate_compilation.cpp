// SPDX-License-Identifier: Apache-2.0
// flags: -DSTAGGER_SEPARATE_COMPILATION -DLAYER
// flags: -DSTAGGER_SEPARATE_COMPILATION
// expect-error: stagger: not (a Stage: it has no public type Input|an OptimizerPolicy: 'states' must be 0, 1 or 2)
#include <stagger/stagger.hpp>

#include "half.hpp"

struct Layer {};

struct ThreeStates : sg::optimizer::Sgd {
  static constexpr int states = 3;
};

#ifdef LAYER
int main() { auto train = sg::Pipeline{Half{}, Layer{}}.with(Distance{}); }
#else
int main() { auto train = sg::Pipeline{Half{}, Half{}}.with(ThreeStates{}, Distance{}); }
#endif
