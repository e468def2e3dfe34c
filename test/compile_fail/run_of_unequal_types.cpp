// SPDX-License-Identifier: Apache-2.0
// mistake: stage: a `std::vector` of layers whose output is not their input
// expect-error: stagger: a std::vector of layers is a chain: the Input of its layers
// see: stages.md#many-layers
#include <stagger/stagger.hpp>

#include "half.hpp"

struct Widen {
  using Input = float;
  using Output = double;
  void forward(sg::Context&, float const&, double&, sg::NothingSaved&) {}
  void backward(sg::Context&, float const&, double const&, float&, sg::NothingSaved&) {}
};

int main() { auto train = sg::Pipeline{Half{}, std::vector<Widen>(2)}.with(sg::schedule::GPipe{}); }
