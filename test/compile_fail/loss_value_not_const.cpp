// SPDX-License-Identifier: Apache-2.0
// mistake: loss: `value` is not const
// expect-error: stagger: the loss does not accept the Output of the last stage: it needs 'double value\(
// see: stages.md#the-loss
#include <stagger/stagger.hpp>

#include "half.hpp"

struct Mine {
  using policy_tag = sg::LossTag;
  using Target = float;
  double terms(float const&) const { return 1; }
  double value(sg::Context&, float const& y, float const& target) { return y - target; }
  double value_and_gradient(sg::Context&, float const& y, float const& target, double scale,
                            float& dy) const {
    dy = static_cast<float>(scale);
    return y - target;
  }
};

int main() { auto train = sg::Pipeline{Half{}, Half{}}.with(Mine{}); }
