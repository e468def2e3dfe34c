// SPDX-License-Identifier: Apache-2.0
// mistake: stage: `gradients_complete(Context&)` beside `parameters()`, or without a `Context&`
// expect-error: stagger: not a Stage: 'void gradients_complete\(Context&\)' is for a layer
// see: stages.md#weights-that-stay-yours
#include <stagger/stagger.hpp>

#include "half.hpp"

struct Layer {
  using Input = float;
  using Output = float;
  sg::Parameter<> a{"a", {1}};
  auto parameters() { return std::tie(a); }
  void forward(sg::Context&, float const& x, float& y, sg::NothingSaved&) { y = x; }
  void backward(sg::Context&, float const&, float const& dy, float& dx, sg::NothingSaved&) {
    dx = dy;
  }
  void gradients_complete(sg::Context&) {}
};

int main() { auto train = sg::Pipeline{Half{}, Layer{}}.with(Distance{}); }
