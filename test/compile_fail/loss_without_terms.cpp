// SPDX-License-Identifier: Apache-2.0
// mistake: loss: no function `terms`
// expect-error: stagger: the loss does not work: it needs 'double terms\(Target const&\) const'
// see: stages.md#the-loss
#include <stagger/stagger.hpp>

#include "half.hpp"

struct Mine {
  using policy_tag = sg::LossTag;
  using Target = float;
  double value(sg::Context&, float const& y, float const& target) const { return y - target; }
  double value_and_gradient(sg::Context&, float const& y, float const& target, double scale,
                            float& dy) const {
    dy = static_cast<float>(scale);
    return y - target;
  }
};

int main() { auto train = sg::Pipeline{Half{}, Half{}}.with(Mine{}); }
