// SPDX-License-Identifier: Apache-2.0
// mistake: stage: a member such as `std::unique_ptr`
// expect-error: stagger: not a Stage: it cannot be copied and assigned; .*std::unique_ptr
// see: stages.md#the-smallest-one
#include <stagger/stagger.hpp>

#include "half.hpp"

#include <memory>

struct Layer {
  using Input = float;
  using Output = float;
  std::unique_ptr<int> table;
  void forward(sg::Context&, float const& x, float& y, sg::NothingSaved&) { y = x; }
  void backward(sg::Context&, float const&, float const& dy, float& dx, sg::NothingSaved&) {
    dx = dy;
  }
};

int main() {
  auto model = sg::Pipeline{Half{}, Layer{}};
  auto train = model.with(Distance{});
}
