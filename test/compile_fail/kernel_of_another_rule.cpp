// SPDX-License-Identifier: Apache-2.0
// component: cuda
// expect-error -DRULE=SignDescent: stagger: the library has kernels of optimizer::Sgd and optimizer::AdamW; give cuda::Enqueued a Launch of your own for another rule
// accepted: -DRULE=sg::optimizer::AdamW
#include <stagger/cuda/kernels.hpp>

namespace sg = stagger;

#ifndef RULE
#define RULE sg::optimizer::Sgd
#endif

struct SignDescent {
  using policy_tag = sg::OptimizerTag;
  static constexpr int states = 0;
  static constexpr bool element_wise = true;
  double rate = 1e-3;
};

int main() {
  sg::cuda::Enqueued<RULE> const optimizer{};
  optimizer.update(sg::OptimizerView<float>{}, 1, 1);
}
