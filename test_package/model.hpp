// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The smallest thing that trains: y = scale x, twice, fitted to y = 6 x.

#include <tuple>

#include <stagger/stagger.hpp>

struct Scale {
  using Input = float;
  using Output = float;
  stagger::Parameter<> scale{"scale", {1.5F}};

  void forward(stagger::Context& context, float const& x, float& y, stagger::NothingSaved&) {
    y = context[scale][0] * x;
  }
  void backward_input(stagger::Context& context, float const&, float const& dy, float& dx,
                      stagger::NothingSaved&) {
    dx = context[scale][0] * dy;
  }
  void backward_weight(stagger::Context& context, float const& x, float const& dy,
                       stagger::NothingSaved&) {
    context.gradient(scale)[0] += x * dy;
  }
  auto parameters() { return std::tie(scale); }
};

struct SquaredError {
  using policy_tag = stagger::LossTag;
  using Target = float;

  double terms(float) const { return 1; }
  double value(stagger::Context&, float y, float target) const {
    double const difference = static_cast<double>(y) - static_cast<double>(target);
    return difference * difference;
  }
  double value_and_gradient(stagger::Context& context, float y, float target, double scale,
                            float& dy) const {
    dy = static_cast<float>(2 * scale * (static_cast<double>(y) - static_cast<double>(target)));
    return value(context, y, target);
  }
};

/// Loss of the last of some steps, with a schedule.
template <class Schedule> double train(Schedule schedule) {
  auto pipeline = stagger::Pipeline{Scale{}, Scale{}}.with(
      schedule, SquaredError{}, stagger::host::Threads{2}, stagger::optimizer::Sgd{.rate = 0.01});
  stagger::Batch<float, float> const batch{{1.0F, -1.0F, 0.5F, 2.0F}, {6.0F, -6.0F, 3.0F, 12.0F}};
  double loss = 0;
  for (int step = 0; step < 200; ++step) loss = stagger::run(pipeline.step(batch)).loss;
  return loss;
}
