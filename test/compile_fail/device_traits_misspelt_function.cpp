// SPDX-License-Identifier: Apache-2.0
// mistake: policy: a device whose traits name a function that it spells otherwise
// expect-error: stagger: DeviceTraits::spare_places is for devices with 'int spare_places\(int ranks\) const'
// see: policies.md#device
#include <stagger/stagger.hpp>

#include "half.hpp"

struct Mine : sg::host::Threads {
  static constexpr sg::DeviceTraits traits{
      .obeys_placement = true, .spare_places = true, .sums_while_running = true};
  int spare_places() const { return 0; }  // without the number of ranks
};

int main() { auto train = sg::Pipeline{Half{}, Half{}}.with(Mine{}, Distance{}); }
