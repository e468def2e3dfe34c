// SPDX-License-Identifier: Apache-2.0
// mistake: stage: `backward_input` takes `dx` by value
// expect-error: stagger: not a Stage: y, dx and saved are taken by reference, or what backward writes is lost
// see: stages.md#split-the-backward-if-you-can
#include <stagger/stagger.hpp>

#include "half.hpp"

struct Layer {
  using Input = float;
  using Output = float;
  void forward(sg::Context&, float const& x, float& y, sg::NothingSaved&) { y = x; }
  void backward_input(sg::Context&, float const&, float const& dy, float dx, sg::NothingSaved&) {
    dx = dy;
  }
};

int main() { auto train = sg::Pipeline{Half{}, Layer{}}.with(Distance{}); }
