// SPDX-License-Identifier: Apache-2.0
// mistake: stage: `parameters()` returns a container
// expect-error: stagger: not a Stage: its parameters\(\) must return std::tie of all its Parameters
// see: stages.md#parameters-belong-to-the-engine
#include <stagger/stagger.hpp>

#include "half.hpp"

struct Layer {
  using Input = float;
  using Output = float;
  sg::Parameter<> a{"a", {1}};
  auto parameters() { return std::vector<sg::Parameter<>*>{&a}; }
  void forward(sg::Context&, float const& x, float& y, sg::NothingSaved&) { y = x; }
  void backward(sg::Context&, float const&, float const& dy, float& dx, sg::NothingSaved&) {
    dx = dy;
  }
};

int main() { auto train = sg::Pipeline{Half{}, Layer{}}.with(Distance{}); }
