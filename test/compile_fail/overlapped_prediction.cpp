// SPDX-License-Identifier: Apache-2.0
// mistake: policy: a prediction for late layers that does not say whether it remembers
// expect-error: stagger: not a prediction for late layers: it needs
// see: workers.md#late-layers
#include <stagger/stagger.hpp>

#include "half.hpp"

#include <stagger/collective/parameter_server.hpp>
#include <stagger/engine/run_together.hpp>
#include <stagger/staleness/overlapped_synchronous.hpp>

namespace osp = sg::staleness::overlapped;

struct Mine {
  template <class T> T predict(T local, T) const { return local; }
  friend bool operator==(Mine const&, Mine const&) = default;
};

int main() {
  sg::collective::ParameterServer server({.workers = 2});
  auto train = sg::Pipeline{Half{}, Half{}}.with(
      server.worker(0),
      sg::staleness::OverlappedSynchronous<osp::GradientNorm, osp::FirstFit, osp::AllLate, Mine>{},
      Distance{});
}
