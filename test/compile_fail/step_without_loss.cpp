// SPDX-License-Identifier: Apache-2.0
// expect-error: stagger: a step needs a loss; give Pipeline::with one, such as
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
  auto train = sg::Pipeline{Half{}, Half{}}.with(sg::schedule::GPipe{});
  sg::Batch<float, float> batch{{1}, {1}};
  sg::run(train.step(batch));
}
