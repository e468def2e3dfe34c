// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A plan by measured layers, wherever they were measured.

#include <vector>

#include <stagger/cluster/cluster.hpp>
#include <stagger/cluster/profile.hpp>
#include <stagger/report/table.hpp>

#include "forecast.hpp"

namespace gpt {

/// The layers of the model where they are to run.
class Measurable {
 public:
  virtual ~Measurable() = default;
  /// Times for so many sequences at once.
  /// @param budget_s  to spend on it
  [[nodiscard]] virtual stagger::cluster::Profile profile(int sequences, double budget_s) = 0;
  /// [layers] seconds of an optimizer step.
  [[nodiscard]] virtual std::vector<double> updates() = 0;
  [[nodiscard]] virtual stagger::cluster::Cluster cluster() = 0;
};

/// The plan that settings.plan names, or where it is "auto" the fastest that could be found; with
/// its predictions but that of memory.
/// @throws Error  as `forecast`
[[nodiscard]] Forecast planned_by(Settings const& settings, Measurable& layers);

/// The times of a step, predicted and measured: the first rows of what `compared` says.
[[nodiscard]] stagger::report::TextTable compared_times(Forecast const& forecast, double step_s,
                                                        double fastest_s);

}  // namespace gpt
