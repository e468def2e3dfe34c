// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Planning from measured layers, on the host or on a GPU.

#include <vector>

#include <stagger/cluster/cluster.hpp>
#include <stagger/cluster/profile.hpp>
#include <stagger/report/table.hpp>

#include "forecast.hpp"

namespace gpt {

/// Measures the layers of the model on the device that will run them.
class LayerTimer {
 public:
  virtual ~LayerTimer() = default;
  /// Times of the layers for a microbatch of `sequences`.
  /// @param budget_s  how long to measure
  [[nodiscard]] virtual stagger::cluster::Profile profile(int sequences, double budget_s) = 0;
  /// @return  [layers] seconds of an optimizer step
  [[nodiscard]] virtual std::vector<double> updates() = 0;
  [[nodiscard]] virtual stagger::cluster::Cluster cluster() = 0;
};

/// The plan that settings.plan names, or for "auto" the one with the shortest predicted step. Its
/// memory is not predicted.
/// @throws Error  as `forecast`
[[nodiscard]] Forecast planned_by(Settings const& settings, LayerTimer& layers);

/// The rows of the table of `compared` about the time of a step.
[[nodiscard]] stagger::report::TextTable compared_times(Forecast const& forecast, double step_s,
                                                        double fastest_s);

}  // namespace gpt
