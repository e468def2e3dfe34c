// SPDX-License-Identifier: Apache-2.0
// mistake: policy: `update` takes `OptimizerView<float>` alone
// expect-error: stagger: not an OptimizerPolicy: it needs 'template <class T> void update\(OptimizerView<T> const&
// see: policies.md#optimizer
#include <stagger/stagger.hpp>

#include "half.hpp"

struct Mine {
  using policy_tag = sg::OptimizerTag;
  static constexpr int states = 0;
  static constexpr bool element_wise = true;
  void update(sg::OptimizerView<float> const& v, double scale, std::int64_t) const noexcept {
    for (std::size_t i = 0; i < v.size; ++i)
      v.next[i] = v.value[i] - static_cast<float>(scale) * v.gradient[i];
  }
};

int main() { auto train = sg::Pipeline{Half{}, Half{}}.with(Mine{}, Distance{}); }
