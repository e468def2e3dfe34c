// SPDX-License-Identifier: Apache-2.0
// expect-error: stagger: this schedule never flushes, so weights change under
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

struct Endless : sg::schedule::GPipe {
  static constexpr bool flushes = false;
};

int main() {
  auto train = sg::Pipeline{Half{}, Half{}}.with(Endless{}, sg::staleness::Synchronous{});
}
