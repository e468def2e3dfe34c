// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   How the model runs best on this machine, and what that will take.

#include <string>

#include <stagger/engine/machine.hpp>
#include <stagger/plan/plan.hpp>

#include "settings.hpp"
#include "text.hpp"

namespace gpt {

/// A plan for the threads of this machine, with what a step by it is predicted to take.
struct Forecast {
  stagger::plan::Plan plan{};
  double step_s = 0;         ///< the iteration and the update behind it
  stagger::Memory memory{};  ///< of the pipeline, byte for byte
};

/// Measures the layers, all threads at work, and plans, or reads settings.plan and predicts that.
/// @throws Error  with Errc::bad_configuration or bad_data for a plan that does not fit the
///                settings, and Errc::io for a file that cannot be read
[[nodiscard]] Forecast forecast(Settings const& settings, Text const& text);

/// What was predicted beside what was measured, and how busy the machine is.
/// @param step_s     median
/// @param fastest_s  of the steps: what is left of the difference where others use the machine too
[[nodiscard]] std::string compared(Forecast const& forecast, double step_s, double fastest_s,
                                   stagger::Memory const& memory);

}  // namespace gpt
