// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The marks of a time axis at round numbers, and the unit of their labels.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>

#include <stagger/report/format.hpp>

namespace stagger::report::detail {

/// Marks at 0, step, 2 step, ... up to the end, labelled in one unit.
struct Ticks {
  double step_s = 1;      ///< seconds between two marks
  double unit_s = 1;      ///< seconds in the unit of the labels
  char const* unit = "";  ///< "ns", "us", "ms", "s"; empty for plain numbers
  int decimals = 0;

  /// Label of the i-th mark, without the unit.
  [[nodiscard]] std::string label(std::int64_t i) const {
    return format_fixed(static_cast<double>(i) * step_s / unit_s, decimals);
  }
};

/// About `wanted` marks over `length_s`, 1, 2 or 5 times a power of ten apart.
/// @param plain   labels are plain numbers of seconds: for times in abstract units
[[nodiscard]] inline Ticks make_ticks(double length_s, int wanted, bool plain) {
  Ticks ticks;
  if (!(length_s > 0)) return ticks;
  double const raw = length_s / std::max(wanted, 1);
  int const power = static_cast<int>(std::floor(std::log10(raw)));
  double const base = std::pow(10.0, power);
  double const lead = raw / base;  // 1 to 10
  int const factor = lead <= 1.0001 ? 1 : lead <= 2.0001 ? 2 : lead <= 5.0001 ? 5 : 10;
  ticks.step_s = factor * base;
  int exponent = factor == 10 ? power + 1 : power;  // of the step's first digit
  if (!plain) {
    double const end = length_s * 1.0001;
    ticks.unit = end >= 1 ? "s" : end >= 1e-3 ? "ms" : end >= 1e-6 ? "us" : "ns";
    int const shift = end >= 1 ? 0 : end >= 1e-3 ? 3 : end >= 1e-6 ? 6 : 9;
    ticks.unit_s = std::pow(10.0, -shift);
    exponent += shift;
  }
  ticks.decimals = std::max(0, -exponent);
  return ticks;
}

}  // namespace stagger::report::detail
