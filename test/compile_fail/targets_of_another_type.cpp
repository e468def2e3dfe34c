// SPDX-License-Identifier: Apache-2.0
// expect-error: stagger: the batch's targets are not the Target of the loss
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
  auto train = sg::Pipeline{Half{}, Half{}}.with(sg::loss::MeanSquaredError<>{});
  sg::Batch<float, float> batch{{1}, {1}};
  sg::run(train.step(batch));
}
