// SPDX-License-Identifier: Apache-2.0
// mistake: policy: a staleness model without `synchronous`
// expect-error: stagger: not a StalenessPolicy: it needs 'static constexpr bool synchronous'
// see: policies.md#staleness
#include <stagger/stagger.hpp>

#include "half.hpp"

struct Mine {
  using policy_tag = sg::StalenessTag;
  int microbatches() const { return 1; }
  int version(int, int available) const { return available; }
};

int main() { auto train = sg::Pipeline{Half{}, Half{}}.with(Mine{}, Distance{}); }
