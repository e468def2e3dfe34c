// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A plan for this machine, and its predicted time and memory.

#include <string>

#include <stagger/engine/machine.hpp>
#include <stagger/plan/plan.hpp>

#include "settings.hpp"
#include "text.hpp"

namespace gpt {

/// A plan, with its predicted time and memory.
struct Forecast {
  stagger::plan::Plan plan{};
  double step_s = 0;         ///< iteration and optimizer update
  stagger::Memory memory{};  ///< exact
};

/// Measures the layers with all threads busy, and makes a plan or reads the one that settings.plan
/// names.
/// @throws Error  with Errc::bad_configuration or bad_data for a plan that does not fit the
///                settings, and Errc::io for a file that cannot be read
[[nodiscard]] Forecast forecast(Settings const& settings, Text const& text);

/// A table of predictions beside measurements, with the load of the machine.
/// @param step_s     median time of the steps
/// @param fastest_s  shortest time, which other load on the machine disturbs least
[[nodiscard]] std::string compared(Forecast const& forecast, double step_s, double fastest_s,
                                   stagger::Memory const& memory);

}  // namespace gpt
