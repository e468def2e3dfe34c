// SPDX-License-Identifier: Apache-2.0
// mistake: stage: an inner stage without the gradient of its input
// expect-error: stagger: only the first layer may leave out the gradient of its input
// see: stages.md#split-the-backward-if-you-can
#include <stagger/stagger.hpp>

#include "half.hpp"

struct Weighs {
  using Input = float;
  using Output = float;
  void forward(sg::Context&, float const&, float&, sg::NothingSaved&) {}
  void backward_weight(sg::Context&, float const&, float const&, sg::NothingSaved&) {}
};

int main() {
  auto fine = sg::Pipeline{Weighs{}, Half{}}.with(sg::schedule::GPipe{});
  auto train = sg::Pipeline{Half{}, Weighs{}}.with(sg::schedule::GPipe{});
}
