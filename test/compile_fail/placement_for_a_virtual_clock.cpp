// SPDX-License-Identifier: Apache-2.0
// mistake: policy: a placement for a device that has one place for each rank
// expect-error: stagger: this device has one place for all ranks, or one for each, so a placement would change nothing
// see: policies.md#placement
#include <stagger/stagger.hpp>

#include "half.hpp"

int main() {
  auto train = sg::Pipeline{Half{}, Half{}}.with(sg::placement::ExplicitMap{{0, 1}},
                                                 sg::sim::VirtualClock{}, Distance{});
}
