// SPDX-License-Identifier: Apache-2.0
// mistake: policy: two devices
// expect-error: stagger: two devices; give at most one
// see: policies.md
#include <stagger/stagger.hpp>

#include "half.hpp"

int main() {
  auto train =
      sg::Pipeline{Half{}, Half{}}.with(sg::host::Threads{2}, sg::sim::VirtualClock{}, Distance{});
}
