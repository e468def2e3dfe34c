// SPDX-License-Identifier: Apache-2.0
// expect-error: stagger: neighbouring stages do not fit: the Output of the first is not
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

struct Words {
  using Input = double;
  using Output = float;
  void forward(sg::Context&, double const&, float&, sg::NothingSaved&) {}
  void backward(sg::Context&, double const&, float const&, double&, sg::NothingSaved&) {}
};

int main() { auto train = sg::Pipeline{Half{}, Words{}}.with(sg::schedule::GPipe{}); }
