// SPDX-License-Identifier: Apache-2.0
// mistake: policy: a parameter server with a staleness model that never pushes
// expect-error: stagger: nothing is pushed to this parameter server; add a staleness model of several workers
// see: workers.md
#include <stagger/stagger.hpp>

#include "half.hpp"

#include <stagger/collective/parameter_server.hpp>
#include <stagger/engine/run_together.hpp>
#include <stagger/schedule/pipe_dream.hpp>

int main() {
  sg::collective::ParameterServer server({.workers = 2});
  auto train = sg::Pipeline{Half{}, Half{}}.with(server.worker(0), sg::schedule::PipeDream{},
                                                 sg::staleness::WeightStashing{}, Distance{});
}
