// SPDX-License-Identifier: Apache-2.0
// mistake: words: `context[weight][0] = 2` in a stage
// remedy: parameters are written by the optimizer alone: add to `context.gradient(weight)`, or write `train.parameters()` between two steps
// expect-error: (assignment of read-only location|cannot assign to return value)
// see: stages.md#parameters-belong-to-the-engine
#include <stagger/stagger.hpp>

#include "half.hpp"

struct Layer : Half {
  sg::Parameter<> a{"a", {1}};
  auto parameters() { return std::tie(a); }
  void forward(sg::Context& context, float const& x, float& y, sg::NothingSaved&) {
    context[a][0] = 2;
    y = x;
  }
};

int main() { auto train = sg::Pipeline{Layer{}}.with(Distance{}); }
