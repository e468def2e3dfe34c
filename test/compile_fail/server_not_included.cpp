// SPDX-License-Identifier: Apache-2.0
// mistake: policy: a parameter server without the header of its workers
// expect-error: stagger: workers of a parameter server need one more header: include <stagger/engine/run_together\.hpp>
// see: workers.md
#include <stagger/collective/parameter_server.hpp>
#include <stagger/stagger.hpp>

#include "half.hpp"

int main() {
  sg::collective::ParameterServer server({.workers = 1});
  auto train = sg::Pipeline{Half{}, Half{}}.with(server.worker(0), Distance{});
}
