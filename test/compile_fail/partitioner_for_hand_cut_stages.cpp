// SPDX-License-Identifier: Apache-2.0
// mistake: policy: a partitioner for stages that are cut by hand
// expect-error: stagger: these stages are cut by hand; leave the partitioner out
// see: stages.md#many-layers
#include <stagger/stagger.hpp>

#include "half.hpp"

int main() { auto train = sg::Pipeline{Half{}, Half{}}.with(sg::partition::Even{2}); }
