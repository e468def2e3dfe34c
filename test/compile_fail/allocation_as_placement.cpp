// SPDX-License-Identifier: Apache-2.0
// mistake: policy: an allocation, instead of a placement
// expect-error: stagger: an allocation is no placement of ranks: give with\(\) placement::ExplicitMap with one of the lists
// see: planning.md
#include <stagger/stagger.hpp>

#include "half.hpp"

#include <stagger/placement/allocation.hpp>

int main() {
  auto train = sg::Pipeline{Half{}, Half{}}.with(sg::placement::EqualDistribution{}, Distance{});
}
