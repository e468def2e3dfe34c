// SPDX-License-Identifier: Apache-2.0
// mistake: policy: a device without `Backend`
// expect-error: stagger: not a DevicePolicy: it must name its back end
// see: policies.md#device
#include <stagger/stagger.hpp>

#include "half.hpp"

struct Mine {
  using policy_tag = sg::DeviceTag;
};

int main() { auto train = sg::Pipeline{Half{}, Half{}}.with(Mine{}, Distance{}); }
