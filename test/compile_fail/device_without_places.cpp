// SPDX-License-Identifier: Apache-2.0
// mistake: policy: a device without `places`
// expect-error: stagger: not a DevicePolicy: it needs 'int places\(\) const'
// see: policies.md#device
#include <stagger/stagger.hpp>

#include "half.hpp"

struct Mine {
  using policy_tag = sg::DeviceTag;
  struct Backend {};
  static constexpr sg::DeviceTraits traits{};
};

int main() { auto train = sg::Pipeline{Half{}, Half{}}.with(Mine{}, Distance{}); }
