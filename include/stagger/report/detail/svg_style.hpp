// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Colours of the timeline picture and the style sheet made of them.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <string>

#include <stagger/schedule/action.hpp>

namespace stagger::report::detail {

struct Rgb {
  double r = 0, g = 0, b = 0;  ///< 0 to 255

  /// A part `share` of the way to another colour.
  [[nodiscard]] constexpr Rgb towards(Rgb to, double share) const noexcept {
    return {r + (to.r - r) * share, g + (to.g - g) * share, b + (to.b - b) * share};
  }

  [[nodiscard]] std::string hex() const {
    constexpr char const* digits = "0123456789abcdef";
    std::string text = "#";
    for (double const part : {r, g, b}) {
      auto const value = static_cast<unsigned>(std::lround(std::clamp(part, 0.0, 255.0)));
      (text += digits[value >> 4U]) += digits[value & 15U];
    }
    return text;
  }

  /// Relative luminance, 0 (black) to 1 (white), as WCAG 2 defines it.
  [[nodiscard]] double luminance() const {
    auto const linear = [](double part) {
      double const c = part / 255;
      return c <= 0.04045 ? c / 12.92 : std::pow((c + 0.055) / 1.055, 2.4);
    };
    return 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  }
};

inline constexpr Rgb white{255, 255, 255};
inline constexpr Rgb ink{16, 24, 40};

/// Base colours of F, B, I, W and of reductions: hues that stay apart under every common colour
/// blindness, and in lightness as well, for print.
[[nodiscard]] constexpr Rgb base_colour(schedule::Kind kind) noexcept {
  switch (kind) {
    case schedule::Kind::forward:
      return {38, 98, 171};  // blue, dark
    case schedule::Kind::backward:
      return {240, 160, 48};  // orange, light
    case schedule::Kind::backward_input:
      return {251, 216, 120};  // amber, lightest
    case schedule::Kind::backward_weight:
      return {60, 154, 124};  // green, between
    case schedule::Kind::reduce_gradient:
      return {104, 38, 112};  // purple, darkest
    default:
      return {128, 134, 148};  // messages: grey
  }
}

/// Letter of the kind in class names.
[[nodiscard]] constexpr char kind_letter(schedule::Kind kind) noexcept {
  switch (kind) {
    case schedule::Kind::forward:
      return 'f';
    case schedule::Kind::backward:
      return 'b';
    case schedule::Kind::backward_input:
      return 'i';
    case schedule::Kind::backward_weight:
      return 'w';
    case schedule::Kind::reduce_gradient:
      return 'r';
    default:
      return 'm';
  }
}

/// Colour of a rank's chunk: later chunks are lighter.
[[nodiscard]] constexpr Rgb chunk_colour(schedule::Kind kind, std::size_t chunk,
                                         std::size_t chunks) noexcept {
  if (chunks < 2) return base_colour(kind);
  double const most = 0.62;
  double const last = static_cast<double>(chunks - 1);
  double const share = most * std::min(1.0, last / 2 + 0.1) * static_cast<double>(chunk) / last;
  return base_colour(kind).towards(white, share);
}

/// White or black, whichever reads better on the colour: at least 4.5 to 1 on any.
[[nodiscard]] inline Rgb text_colour(Rgb on) {
  double const l = on.luminance();
  return 1.05 / (l + 0.05) > (l + 0.05) / 0.05 ? white : Rgb{};
}

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
  std::string css;
  css += std::string(".page{fill:") + scheme.page + "}";
  css += std::string(".rail{fill:") + scheme.rail + "}";
  css += std::string(".grid{stroke:") + scheme.grid + "}";
  css += std::string("text{fill:") + scheme.strong + "}";
  css += std::string(".weak{fill:") + scheme.weak + "}";
  return css;
}

}  // namespace stagger::report::detail
