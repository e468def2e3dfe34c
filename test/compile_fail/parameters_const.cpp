// SPDX-License-Identifier: Apache-2.0
// mistake: stage: `parameters() const`
// expect-error: stagger: not a Stage: its parameters\(\) must not be const
// see: stages.md#parameters-belong-to-the-engine
#include <stagger/stagger.hpp>

#include "half.hpp"

struct Layer : Half {
  sg::Parameter<> a{"a", {1}};
  auto parameters() const { return std::tie(a); }
};

int main() { auto train = sg::Pipeline{Half{}, Layer{}}.with(Distance{}); }
