// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Lines of the report of a GPU.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <string>
#include <vector>

namespace table {

inline constexpr char head[] = "| what | measured | must | |\n|---|---|---|---|\n";

inline double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

inline void row(std::string const& what, std::string const& measured, std::string const& must,
                bool holds) {
  std::printf("| %s | %s | %s | %s |\n", what.c_str(), measured.c_str(), must.c_str(),
              must == "none" ? ""
              : holds        ? "holds"
                             : "**missed**");
  std::fflush(stdout);
}

inline std::string number(double value, char const* unit) {
  char text[64];
  std::snprintf(text, sizeof text, std::abs(value) < 1000 ? "%.3g %s" : "%.0f %s", value, unit);
  return text;
}

}  // namespace table
