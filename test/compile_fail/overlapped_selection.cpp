// SPDX-License-Identifier: Apache-2.0
// mistake: policy: a selection of late layers without `pick`
// expect-error: stagger: not a selection of late layers: it needs
// see: workers.md#late-layers
#include <stagger/stagger.hpp>

#include "half.hpp"

#include <stagger/collective/parameter_server.hpp>
#include <stagger/engine/run_together.hpp>
#include <stagger/staleness/overlapped_synchronous.hpp>

namespace osp = sg::staleness::overlapped;

struct Mine {
  template <class Layer> void choose(std::span<Layer>, double) const {}
  friend bool operator==(Mine const&, Mine const&) = default;
};

int main() {
  sg::collective::ParameterServer server({.workers = 2});
  auto train = sg::Pipeline{Half{}, Half{}}.with(
      server.worker(0), sg::staleness::OverlappedSynchronous<osp::GradientNorm, Mine>{},
      Distance{});
}
