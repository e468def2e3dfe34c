// SPDX-License-Identifier: Apache-2.0
// mistake: policy: an optimizer that does not say whether it is element_wise
// expect-error: stagger: not an OptimizerPolicy: it needs 'static constexpr bool element_wise', true if
// expect-error -DSTATES=count: stagger: not an OptimizerPolicy: it needs 'static constexpr int states', the number of values
// see: policies.md#optimizer
#include <stagger/stagger.hpp>

#include "half.hpp"

#ifndef STATES
#define STATES states
#endif

struct Mine {
  using policy_tag = sg::OptimizerTag;
  static constexpr int STATES = 0;
  static constexpr bool elementwise = false;
  template <class T>
  void update(sg::OptimizerView<T> const& v, double scale, std::int64_t) const noexcept {
    for (std::size_t i = 0; i < v.size; ++i)
      v.next[i] = v.value[i] - static_cast<T>(scale) * v.gradient[i];
  }
};

int main() { auto train = sg::Pipeline{Half{}, Half{}}.with(Mine{}, Distance{}); }
