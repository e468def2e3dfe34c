// SPDX-License-Identifier: Apache-2.0
// mistake: policy: a collective that does not say what is added up together
// expect-error: stagger: not a CollectivePolicy: it needs 'collective::By by'
// see: engine.md#their-gradients
#include <stagger/stagger.hpp>

#include "half.hpp"

struct Sums {
  using policy_tag = sg::CollectiveTag;
  sg::collective::By by = sg::collective::By::slices;
};

int main() { auto train = sg::Pipeline{Half{}, Half{}}.with(Sums{}, Distance{}); }
