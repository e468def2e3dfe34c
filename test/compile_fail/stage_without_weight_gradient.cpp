// SPDX-License-Identifier: Apache-2.0
// mistake: stage: `parameters()`, but only `backward_input`
// expect-error: stagger: not a Stage: it adds to no gradient of its weights
// see: stages.md#split-the-backward-if-you-can
#include <stagger/stagger.hpp>

#include "half.hpp"

struct Layer {
  using Input = float;
  using Output = float;
  sg::Parameter<> a{"a", {1}};
  auto parameters() { return std::tie(a); }
  void forward(sg::Context&, float const& x, float& y, sg::NothingSaved&) { y = x; }
  void backward_input(sg::Context&, float const&, float const& dy, float& dx, sg::NothingSaved&) {
    dx = dy;
  }
};

int main() { auto train = sg::Pipeline{Half{}, Layer{}}.with(Distance{}); }
