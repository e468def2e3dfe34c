// SPDX-License-Identifier: Apache-2.0
#pragma once
// A stage in which nothing is wrong, for programs in which one thing is.

namespace sg = stagger;

struct Half {
  using Input = float;
  using Output = float;
  void forward(sg::Context&, float const& x, float& y, sg::NothingSaved&) { y = x / 2; }
  void backward(sg::Context&, float const&, float const& dy, float& dx, sg::NothingSaved&) {
    dx = dy / 2;
  }
};

/// A loss for it.
struct Distance {
  using policy_tag = sg::LossTag;
  using Target = float;
  double terms(float const&) const { return 1; }
  double value(sg::Context&, float const& y, float const& target) const {
    return (y - target) * (y - target);
  }
  double value_and_gradient(sg::Context&, float const& y, float const& target, double scale,
                            float& dy) const {
    dy = static_cast<float>(2 * scale) * (y - target);
    return (y - target) * (y - target);
  }
};
