// SPDX-License-Identifier: Apache-2.0
// expect-error: stagger: only the first layer may leave out the gradient of its input
#include <stagger/stagger.hpp>

namespace sg = stagger;

struct Half {
  using Input = float;
  using Output = float;
  void forward(sg::Context&, float const& x, float& y, sg::NothingSaved&) { y = x / 2; }
  void backward(sg::Context&, float const&, float const& dy, float& dx, sg::NothingSaved&) {
    dx = dy / 2;
  }
};

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
