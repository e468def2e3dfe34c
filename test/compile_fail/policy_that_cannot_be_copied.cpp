// SPDX-License-Identifier: Apache-2.0
// expect-error -DTAG=ScheduleTag: stagger: not an? SchedulePolicy: it cannot be copied and assigned
// expect-error -DTAG=StalenessTag: stagger: not an? StalenessPolicy: it cannot be copied and assigned
// expect-error -DTAG=PartitionTag: stagger: not an? PartitionPolicy: it cannot be copied and assigned
// expect-error -DTAG=CollectiveTag: stagger: not an? CollectivePolicy: it cannot be copied and assigned
// expect-error -DTAG=PlacementTag: stagger: not an? PlacementPolicy: it cannot be copied and assigned
// expect-error -DTAG=DeviceTag: stagger: not an? DevicePolicy: it cannot be copied and assigned
// expect-error -DTAG=OptimizerTag: stagger: not an? OptimizerPolicy: it cannot be copied and assigned
// expect-error -DTAG=LossTag: stagger: not an? LossPolicy: it cannot be copied and assigned
#include <stagger/stagger.hpp>

#include "half.hpp"

#include <memory>

template <class Tag> struct Mine {
  using policy_tag = Tag;
  std::unique_ptr<int> only;
};

int main() { auto train = sg::Pipeline{Half{}, Half{}}.with(Mine<sg::TAG>{}); }
