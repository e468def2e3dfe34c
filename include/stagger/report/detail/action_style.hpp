// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The style of each kind of action in pictures: colour, letters and name.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <string>

#include <stagger/schedule/action.hpp>

namespace stagger::report::detail {

struct Rgb {
  double r = 0, g = 0, b = 0;  ///< 0 to 255

  /// The colour at `share` of the distance to another one, 0 to 1.
  [[nodiscard]] constexpr Rgb towards(Rgb to, double share) const noexcept {
    return {r + (to.r - r) * share, g + (to.g - g) * share, b + (to.b - b) * share};
  }

  [[nodiscard]] std::string hex() const {
    auto const part = [](double value) { return std::lround(std::clamp(value, 0.0, 255.0)); };
    char text[8];
    std::snprintf(text, sizeof text, "#%02lx%02lx%02lx", part(r), part(g), part(b));
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

/// White or black, whichever reads better on the colour: the contrast is at least 4.5 to 1 on any.
[[nodiscard]] inline Rgb text_colour(Rgb on) {
  double const l = on.luminance();
  return 1.05 / (l + 0.05) > (l + 0.05) / 0.05 ? white : Rgb{};
}

struct ActionStyle {
  schedule::Kind kind;
  char letter;         ///< in the class names of SVG
  char filler;         ///< fills the further columns of an action in a line of text
  Rgb colour;          ///< of the first chunk
  char const* legend;  ///< begins with the action's letter
};

/// The kinds in the order of a legend. Their hues differ under every common colour blindness, and
/// they differ in lightness as well, for print. The last one stands for all messages.
inline constexpr std::array<ActionStyle, 8> action_styles{
    {{schedule::Kind::forward, 'f', '-', {38, 98, 171}, "F forward"},
     {schedule::Kind::backward, 'b', '=', {240, 160, 48}, "B backward"},
     {schedule::Kind::backward_input, 'i', '~', {251, 216, 120}, "I input gradient"},
     {schedule::Kind::backward_weight, 'w', '_', {60, 154, 124}, "W weight gradient"},
     {schedule::Kind::reduce_gradient, 'r', '+', {104, 38, 112}, "R gradient reduction"},
     {schedule::Kind::push, 'p', '>', {120, 40, 40}, "PUSH to the parameter server"},
     {schedule::Kind::pull, 'q', '<', {190, 120, 150}, "PULL from the parameter server"},
     {schedule::Kind::send_forward, 'm', '_', {128, 134, 148}, "message"}}};

/// The place of a kind in `action_styles`.
[[nodiscard]] constexpr std::size_t style_index(schedule::Kind kind) noexcept {
  std::size_t i = 0;
  while (i + 1 < action_styles.size() && action_styles[i].kind != kind) ++i;
  return i;
}

[[nodiscard]] constexpr ActionStyle const& style_of(schedule::Kind kind) noexcept {
  return action_styles[style_index(kind)];
}

}  // namespace stagger::report::detail
