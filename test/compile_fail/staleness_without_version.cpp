// SPDX-License-Identifier: Apache-2.0
// mistake: policy: a staleness model that is not synchronous and has no `version`
// expect-error: stagger: not a StalenessPolicy: it is not synchronous, so it needs 'int microbatches\(\) const' and 'int version
// see: policies.md#staleness
#include <stagger/stagger.hpp>

#include "half.hpp"

struct Mine {
  using policy_tag = sg::StalenessTag;
  static constexpr bool synchronous = false;
  int microbatches() const { return 1; }
};

int main() { auto train = sg::Pipeline{Half{}, Half{}}.with(Mine{}, Distance{}); }
