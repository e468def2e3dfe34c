// SPDX-License-Identifier: Apache-2.0
// expect-error: stagger: one device takes a loss, an optimizer and Options
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

int main() {
  auto one =
      sg::Pipeline{Half{}}.on_one_device(sg::loss::MeanSquaredError<>{}, sg::schedule::GPipe{});
}
