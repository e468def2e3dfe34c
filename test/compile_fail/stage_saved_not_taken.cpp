// SPDX-License-Identifier: Apache-2.0
// mistake: stage: a type `Saved`, but `NothingSaved&` in `forward`
// expect-error: stagger: not a Stage: it has a type Saved, but its forward takes NothingSaved&
// see: stages.md#saved
#include <stagger/stagger.hpp>

#include "half.hpp"

struct Layer {
  using Input = float;
  using Output = float;
  struct Saved {
    float slope = 0;
  };
  void forward(sg::Context&, float const& x, float& y, sg::NothingSaved&) { y = x; }
  void backward(sg::Context&, float const&, float const& dy, float& dx, sg::NothingSaved&) {
    dx = dy;
  }
};

int main() { auto train = sg::Pipeline{Half{}, Layer{}}.with(Distance{}); }
