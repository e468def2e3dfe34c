// SPDX-License-Identifier: Apache-2.0
// mistake: stage: `forward` takes `y` by value
// expect-error: stagger: not a Stage: y, dx and saved are taken by reference, or what forward writes is lost
// see: stages.md#the-smallest-one
#include <stagger/stagger.hpp>

#include "half.hpp"

struct Layer {
  using Input = float;
  using Output = float;
  void forward(sg::Context&, float const& x, float y, sg::NothingSaved&) { y = x; }
  void backward(sg::Context&, float const&, float const& dy, float& dx, sg::NothingSaved&) {
    dx = dy;
  }
};

int main() { auto train = sg::Pipeline{Half{}, Layer{}}.with(Distance{}); }
