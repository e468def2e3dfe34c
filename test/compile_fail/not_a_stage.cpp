// SPDX-License-Identifier: Apache-2.0
// expect-error: stagger: not a Stage: it needs Input and Output
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

struct Nothing {
  using Input = float;
  using Output = float;
};

int main() { auto train = sg::Pipeline{Half{}, Nothing{}}.with(sg::schedule::GPipe{}); }
