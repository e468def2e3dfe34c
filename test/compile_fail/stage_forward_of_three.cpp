// SPDX-License-Identifier: Apache-2.0
// mistake: stage: `forward` without its last argument
// expect-error: stagger: not a Stage: it has no public 'void forward\(
// see: stages.md#the-smallest-one
#include <stagger/stagger.hpp>

#include "half.hpp"

struct Layer {
  using Input = float;
  using Output = float;
  void forward(sg::Context&, float const& x, float& y) { y = x; }
  void backward(sg::Context&, float const&, float const& dy, float& dx, sg::NothingSaved&) {
    dx = dy;
  }
};

int main() { auto train = sg::Pipeline{Half{}, Layer{}}.with(Distance{}); }
