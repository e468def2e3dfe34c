// SPDX-License-Identifier: Apache-2.0
// mistake: stage: `forward` takes `saved` by value
// expect-error: stagger: not a Stage: y, dx and saved are taken by reference, or what forward writes is lost
// see: stages.md#saved
#include <stagger/stagger.hpp>

#include "half.hpp"

struct Layer {
  using Input = float;
  using Output = float;
  struct Saved {
    float slope = 0;
  };
  void forward(sg::Context&, float const& x, float& y, Saved saved) { y = saved.slope = x; }
  void backward(sg::Context&, float const&, float const& dy, float& dx, Saved saved) {
    dx = saved.slope * dy;
  }
};

int main() { auto train = sg::Pipeline{Half{}, Layer{}}.with(Distance{}); }
