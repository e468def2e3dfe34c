// SPDX-License-Identifier: Apache-2.0
// mistake: policy: homes of parameters, instead of a placement
// expect-error: stagger: homes of parameters are no placement of ranks: call their homes
// see: planning.md
#include <stagger/stagger.hpp>

#include "half.hpp"

#include <stagger/placement/parameter_home.hpp>

int main() {
  auto train = sg::Pipeline{Half{}, Half{}}.with(sg::placement::RoundRobin{}, Distance{});
}
