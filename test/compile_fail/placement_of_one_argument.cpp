// SPDX-License-Identifier: Apache-2.0
// mistake: policy: `place` takes another number of arguments
// expect-error: stagger: not a PlacementPolicy: it needs 'std::vector<int> place\(int ranks, int places\) const'
// see: policies.md#placement
#include <stagger/stagger.hpp>

#include "half.hpp"

struct Mine {
  using policy_tag = sg::PlacementTag;
  std::vector<int> place(int ranks) const {
    return std::vector<int>(static_cast<std::size_t>(ranks));
  }
};

int main() { auto train = sg::Pipeline{Half{}, Half{}}.with(Mine{}, Distance{}); }
