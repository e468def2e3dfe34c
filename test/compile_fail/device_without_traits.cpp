// SPDX-License-Identifier: Apache-2.0
// mistake: policy: a device without `traits`
// expect-error: stagger: not a DevicePolicy: it needs 'static constexpr DeviceTraits traits
// see: policies.md#device
#include <stagger/stagger.hpp>

#include "half.hpp"

struct Mine {
  using policy_tag = sg::DeviceTag;
  struct Backend {};
  int places() const { return 1; }
};

int main() { auto train = sg::Pipeline{Half{}, Half{}}.with(Mine{}, Distance{}); }
