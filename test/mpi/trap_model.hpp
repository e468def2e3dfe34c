// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A small model that springs a trap in one action: layers that scale, a loss that sums.

#include <cstddef>
#include <tuple>
#include <vector>

#include <stagger/core/error.hpp>
#include <stagger/train/pipeline.hpp>

namespace trap_model {

namespace sg = stagger;

/// When something happens: in the action of a microbatch at a layer.
struct Trap {
  int layer = -1;
  int microbatch = 0;
  bool backward = false;
  void (*spring)() = nullptr;
};
inline Trap trap;

inline void reach(sg::Context const& context, int layer, bool backward) {
  if (trap.layer == layer && trap.backward == backward && trap.microbatch == context.microbatch())
    trap.spring();
}

using Numbers = std::vector<float>;

struct Scale {
  using Input = Numbers;
  using Output = Numbers;
  int layer = 0;
  sg::Parameter<> factor{"factor", {0.5F}};
  auto parameters() { return std::tie(factor); }
  void forward(sg::Context& context, Numbers const& x, Numbers& y, sg::NothingSaved&) {
    reach(context, layer, false);
    y = x;
    for (float& v : y) v *= context[factor][0];
  }
  void backward(sg::Context& context, Numbers const& x, Numbers const& dy, Numbers& dx,
                sg::NothingSaved&) {
    reach(context, layer, true);
    dx = dy;
    for (std::size_t i = 0; i < x.size(); ++i) {
      context.gradient(factor)[0] += x[i] * dy[i];
      dx[i] *= context[factor][0];
    }
  }
};

struct Sum {
  using policy_tag = sg::LossTag;
  using Target = float;
  double terms(float const&) const { return 1; }
  double value(sg::Context&, Numbers const& y, float const& target) const {
    return static_cast<double>(y[0] - target);
  }
  double value_and_gradient(sg::Context& context, Numbers const& y, float const& target,
                            double scale, Numbers& dy) const {
    dy.assign(y.size(), static_cast<float>(scale));
    return value(context, y, target);
  }
};

/// A layer with as many numbers as several processes can share.
struct Wide {
  using Input = Numbers;
  using Output = Numbers;
  int layer = 0;
  sg::Parameter<> factors{"factors", std::vector<float>(96, 0.01F)};
  auto parameters() { return std::tie(factors); }
  void forward(sg::Context& context, Numbers const& x, Numbers& y, sg::NothingSaved&) {
    reach(context, layer, false);
    float sum = 0;
    for (std::size_t i = 0; i < 96; ++i) sum += context[factors][i] * static_cast<float>(1 + i % 5);
    y = x;
    for (float& v : y) v *= sum;
  }
  void backward(sg::Context& context, Numbers const& x, Numbers const& dy, Numbers& dx,
                sg::NothingSaved&) {
    reach(context, layer, true);
    float sum = 0;
    for (std::size_t i = 0; i < 96; ++i) sum += context[factors][i] * static_cast<float>(1 + i % 5);
    dx = dy;
    for (std::size_t i = 0; i < x.size(); ++i) {
      for (std::size_t j = 0; j < 96; ++j)
        context.gradient(factors)[j] += x[i] * dy[i] * static_cast<float>(1 + j % 5);
      dx[i] *= sum;
    }
  }
};

/// Two of them in one stage.
inline auto wide_stage() {
  return sg::Pipeline{sg::Sequential{Wide{.layer = 0}, Wide{.layer = 1}}};
}

/// Six layers in one stage.
inline auto one_stage() {
  return sg::Pipeline{sg::Sequential{Scale{.layer = 0}, Scale{.layer = 1}, Scale{.layer = 2},
                                     Scale{.layer = 3}, Scale{.layer = 4}, Scale{.layer = 5}}};
}

/// Sums rows, each an element of the input and of the target.
struct RowSum {
  using policy_tag = sg::LossTag;
  using Target = Numbers;
  double terms(Target const& target) const { return static_cast<double>(target.size()); }
  double value(sg::Context&, Numbers const& y, Target const& target) const {
    double sum = 0;
    for (std::size_t i = 0; i < y.size(); ++i) sum += static_cast<double>(y[i] - target[i]);
    return sum;
  }
  double value_and_gradient(sg::Context& context, Numbers const& y, Target const& target,
                            double scale, Numbers& dy) const {
    dy.assign(y.size(), static_cast<float>(scale));
    return value(context, y, target);
  }
};

}  // namespace trap_model
