// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The common parts of all SVG pictures: the document and its colours, lines of text, and
///         the marks of an axis.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>

#include <stagger/core/error.hpp>
#include <stagger/report/format.hpp>
#include <stagger/report/svg_options.hpp>
#include <stagger/report/utf8.hpp>

namespace stagger::report::detail {

/// Colours of everything that is not a block.
struct Scheme {
  char const* page;    ///< behind everything
  char const* rail;    ///< a rank's idle time
  char const* grid;    ///< time marks
  char const* strong;  ///< title, labels
  char const* weak;    ///< figures, axis
};
inline constexpr Scheme light_scheme{"#ffffff", "#eef0f3", "#d5d9e0", "#1a2230", "#5b6473"};
inline constexpr Scheme dark_scheme{"#11161f", "#1e2530", "#37404e", "#e8ecf2", "#a3adbb"};

[[nodiscard]] inline std::string scheme_rules(Scheme const& scheme) {
  return text(".page{fill:", scheme.page, "}.rail{fill:", scheme.rail,
              "}.grid{stroke:", scheme.grid, "}text{fill:", scheme.strong,
              "}.weak{fill:", scheme.weak, "}");
}

/// The style sheet of a picture in a theme: the common rules, and its own rules `css`.
[[nodiscard]] inline std::string themed(SvgTheme theme, std::string const& css) {
  std::string out = scheme_rules(theme == SvgTheme::dark ? dark_scheme : light_scheme) + css;
  if (theme == SvgTheme::automatic)
    out += "\n@media(prefers-color-scheme:dark){" + scheme_rules(dark_scheme) + "}";
  return out;
}

[[nodiscard]] inline std::string svg_document(int width, int height, std::string_view title,
                                              std::string const& css, std::string const& body,
                                              std::string const& definitions = {}) {
  std::string const size = text("width=\"", width, "\" height=\"", height, "\"");
  return text("<svg xmlns=\"http://www.w3.org/2000/svg\" ", size, " viewBox=\"0 0 ", width, " ",
              height, "\" role=\"img\" font-family=\"",
              "Inter,'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif\">\n<title>", xml(title),
              "</title>\n<style>", css, "</style>\n", definitions, "<rect class=\"page\" ", size,
              " rx=\"6\"/>\n", body, "</svg>\n");
}

/// A line of text. @param style  its classes
[[nodiscard]] inline std::string svg_text(int x, int y, char const* style, std::string_view words) {
  return text("<text class=\"", style, "\" x=\"", x, "\" y=\"", y, "\">", xml(words), "</text>\n");
}

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
