// SPDX-License-Identifier: Apache-2.0
// mistake: policy: a placement of parameters, instead of one of ranks
// expect-error: stagger: a placement of parameters is no placement of ranks: call its layer_nodes
// see: planning.md
#include <stagger/stagger.hpp>

#include "half.hpp"

#include <stagger/placement/parameter_placement.hpp>

int main() {
  auto train = sg::Pipeline{Half{}, Half{}}.with(sg::placement::RoundRobin{}, Distance{});
}
