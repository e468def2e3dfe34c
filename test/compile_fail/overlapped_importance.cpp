// SPDX-License-Identifier: Apache-2.0
// mistake: policy: an importance of late layers that cannot be compared between workers
// expect-error: stagger: not an importance of layers: it needs
// see: workers.md#late-layers
#include <stagger/stagger.hpp>

#include "half.hpp"

#include <stagger/collective/parameter_server.hpp>
#include <stagger/engine/run_together.hpp>
#include <stagger/staleness/overlapped_synchronous.hpp>

namespace osp = sg::staleness::overlapped;

struct Mine {
  double score(auto const& layer) const { return layer.number(); }
};

int main() {
  sg::collective::ParameterServer server({.workers = 2});
  auto train = sg::Pipeline{Half{}, Half{}}.with(
      server.worker(0), sg::staleness::OverlappedSynchronous<Mine>{}, Distance{});
}
