// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A model that computes nothing, to measure the engine alone.

#include <cstddef>

#include <stagger/engine/step.hpp>
#include <stagger/model/loss.hpp>
#include <stagger/model/stage.hpp>

namespace bench {

/// Passes its input on unchanged.
struct EmptyStage {
  using Input = int;
  using Output = int;
  void forward(stagger::Context&, int const& x, int& y, stagger::NothingSaved&) { y = x; }
  void backward(stagger::Context&, int const&, int const& dy, int& dx, stagger::NothingSaved&) {
    dx = dy;
  }
};

/// Always 0.
struct EmptyLoss {
  using policy_tag = stagger::LossTag;
  using Target = int;
  double terms(int const&) const { return 1; }
  double value(stagger::Context&, int const&, int const&) const { return 0; }
  double value_and_gradient(stagger::Context&, int const&, int const&, double, int& dy) const {
    dy = 0;
    return 0;
  }
};

[[nodiscard]] inline stagger::Batch<int, int> empty_batch(int microbatches) {
  stagger::Batch<int, int> batch;
  batch.inputs.resize(static_cast<std::size_t>(microbatches));
  batch.targets.resize(static_cast<std::size_t>(microbatches));
  return batch;
}

}  // namespace bench
