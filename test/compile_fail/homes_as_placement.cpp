// SPDX-License-Identifier: Apache-2.0
// mistake: policy: owners of parameters, instead of a placement
// expect-error: stagger: owners of parameters are no placement of ranks: call their owners
// see: planning.md
#include <stagger/stagger.hpp>

#include "half.hpp"

#include <stagger/placement/parameter_home.hpp>

int main() {
  auto train = sg::Pipeline{Half{}, Half{}}.with(sg::placement::RoundRobin{}, Distance{});
}
