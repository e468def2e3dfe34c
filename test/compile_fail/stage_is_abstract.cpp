// SPDX-License-Identifier: Apache-2.0
// mistake: stage: a virtual base class
// expect-error: stagger: not a Stage: it is an abstract class
// see: stages.md#many-layers
#include <stagger/stagger.hpp>

#include "half.hpp"

struct Layer {
  using Input = float;
  using Output = float;
  virtual ~Layer() = default;
  virtual void forward(sg::Context&, float const& x, float& y, sg::NothingSaved&) = 0;
  virtual void backward(sg::Context&, float const&, float const& dy, float& dx,
                        sg::NothingSaved&) = 0;
};

int main() { auto train = sg::Pipeline{std::vector<Layer>{}}.with(Distance{}); }
