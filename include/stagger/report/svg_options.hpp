// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The contents and the style of a timeline picture.

#include <string_view>

#include <stagger/schedule/timeline.hpp>

namespace stagger::report {

/// The theme of a picture. Each has a background of its own, so that a picture is legible on any
/// page.
enum class SvgTheme : unsigned char {
  light,
  dark,
  automatic,  ///< as the reader's system prefers; light if it has no preference
};

struct SvgOptions {
  int width = 960;           ///< pixels, 200 or more; the height follows from the ranks
  std::string_view title{};  ///< above the picture; empty: none
  SvgTheme theme = SvgTheme::light;
  bool numbers = true;   ///< microbatch numbers in the blocks, where they fit
  bool messages = true;  ///< draw the messages that a timeline carries
  bool figures = true;   ///< makespan, bubble and peak in flight above each panel
  /// The label of a time axis in plain numbers, such as "units of F"; empty: seconds with a prefix.
  std::string_view time_unit{};
};

/// One timeline of a picture and the heading above it.
struct SvgPanel {
  std::string_view name{};
  schedule::Timeline const* timeline = nullptr;  ///< not owned
};

}  // namespace stagger::report
