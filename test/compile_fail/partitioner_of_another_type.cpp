// SPDX-License-Identifier: Apache-2.0
// mistake: policy: `cuts` returns a vector of another type
// expect-error: stagger: not a PartitionPolicy: it needs 'std::vector<int> cuts\(int layers\) const'
// see: policies.md#partition
#include <stagger/stagger.hpp>

#include "half.hpp"

struct Mine {
  using policy_tag = sg::PartitionTag;
  std::vector<std::size_t> cuts(int) const { return {1}; }
};

int main() { auto train = sg::Pipeline{sg::Sequential{Half{}, Half{}}}.with(Mine{}, Distance{}); }
