// SPDX-License-Identifier: Apache-2.0
// mistake: policy: `update` is not `noexcept`
// expect-error: stagger: not an OptimizerPolicy: its update must be noexcept
// see: policies.md#optimizer
#include <stagger/stagger.hpp>

#include "half.hpp"

struct Mine {
  using policy_tag = sg::OptimizerTag;
  static constexpr int states = 0;
  static constexpr bool element_wise = true;
  template <class T> void update(sg::OptimizerView<T> const& v, double scale, std::int64_t) const {
    for (std::size_t i = 0; i < v.size; ++i)
      v.next[i] = v.value[i] - static_cast<T>(scale) * v.gradient[i];
  }
};

int main() { auto train = sg::Pipeline{Half{}, Half{}}.with(Mine{}, Distance{}); }
