// SPDX-License-Identifier: Apache-2.0
// mistake: stage: neighbours whose types differ
// expect-error: stagger: neighbouring stages do not fit: the Output of the first is not
// see: stages.md#the-smallest-one
#include <stagger/stagger.hpp>

#include "half.hpp"

struct Words {
  using Input = double;
  using Output = float;
  void forward(sg::Context&, double const&, float&, sg::NothingSaved&) {}
  void backward(sg::Context&, double const&, float const&, double&, sg::NothingSaved&) {}
};

int main() { auto train = sg::Pipeline{Half{}, Words{}}.with(sg::schedule::GPipe{}); }
