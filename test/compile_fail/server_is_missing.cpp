// SPDX-License-Identifier: Apache-2.0
// mistake: policy: a staleness model of several workers without a parameter server
// expect-error: stagger: this staleness model is one of several workers that train one model, but there is no parameter server
// errors: 1
// see: workers.md
#include <stagger/stagger.hpp>

#include "half.hpp"

#include <stagger/staleness/wave_synchronous.hpp>

int main() {
  auto train = sg::Pipeline{Half{}, Half{}}.with(sg::staleness::WaveSynchronous{}, Distance{});
  static_cast<void>(train.traffic());
  static_cast<void>(train.staleness());
}
