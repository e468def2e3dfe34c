// SPDX-License-Identifier: Apache-2.0
// mistake: stage: `Parameter<int>`
// expect-error: stagger: a Parameter has elements of type float or double
// see: stages.md#parameters-belong-to-the-engine
#include <stagger/stagger.hpp>

#include "half.hpp"

struct Layer {
  using Input = float;
  using Output = float;
  sg::Parameter<int> a{"a", {1}};
  auto parameters() { return std::tie(a); }
  void forward(sg::Context&, float const& x, float& y, sg::NothingSaved&) { y = x; }
  void backward(sg::Context&, float const&, float const& dy, float& dx, sg::NothingSaved&) {
    dx = dy;
  }
};

int main() { auto train = sg::Pipeline{Half{}, Layer{}}.with(Distance{}); }
