// SPDX-License-Identifier: Apache-2.0
// mistake: stage: something other than a stage in a `Sequential`
// expect-error: stagger: not a Stage: it has no public type Input
// see: stages.md#many-layers
#include <stagger/stagger.hpp>

#include "half.hpp"

int main() { auto train = sg::Pipeline{sg::Sequential{Half{}, 3, Half{}}}.with(Distance{}); }
