// SPDX-License-Identifier: Apache-2.0
// expect-error: stagger: a std::vector of layers is a chain: the Input of its layers
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

struct Widen {
  using Input = float;
  using Output = double;
  void forward(sg::Context&, float const&, double&, sg::NothingSaved&) {}
  void backward(sg::Context&, float const&, double const&, float&, sg::NothingSaved&) {}
};

int main() { auto train = sg::Pipeline{Half{}, std::vector<Widen>(2)}.with(sg::schedule::GPipe{}); }
