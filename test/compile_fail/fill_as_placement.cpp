// SPDX-License-Identifier: Apache-2.0
// mistake: policy: a planner's choice of devices, instead of a placement
// expect-error: stagger: a choice of free devices is no placement of ranks: give with\(\) placement::ExplicitMap with what its fill
// see: planning.md
#include <stagger/stagger.hpp>

#include "half.hpp"

#include <stagger/placement/fill.hpp>

int main() {
  auto train = sg::Pipeline{Half{}, Half{}}.with(sg::placement::FreshFirst{}, Distance{});
}
