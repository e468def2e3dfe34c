// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The style sheet of the timeline picture.

#include <algorithm>
#include <cstddef>
#include <string>

#include <stagger/core/error.hpp>
#include <stagger/report/detail/action_style.hpp>
#include <stagger/report/detail/svg_document.hpp>
#include <stagger/report/detail/svg_layout.hpp>
#include <stagger/report/format.hpp>

namespace stagger::report::detail {

/// Colour of a rank's chunk: later chunks are lighter.
[[nodiscard]] constexpr Rgb chunk_colour(ActionStyle const& style, std::size_t chunk,
                                         std::size_t chunks) noexcept {
  if (chunks < 2) return style.colour;
  double const last = static_cast<double>(chunks - 1);
  double const share = 0.62 * std::min(1.0, last / 2 + 0.1) * static_cast<double>(chunk) / last;
  return style.colour.towards(white, share);
}

/// Calls `f(style, class, colour)` for each colour of blocks and messages.
template <class F> void for_each_colour(SvgLayout const& layout, F&& f) {
  for (std::size_t i = 0; i < action_styles.size(); ++i) {
    if (!layout.present[i]) continue;
    std::size_t const chunks = schedule::travels(action_styles[i].kind) ? 1 : layout.chunks;
    for (std::size_t c = 0; c < chunks; ++c)
      f(action_styles[i], SvgKey{i, c}.name(), chunk_colour(action_styles[i], c, chunks));
  }
}

/// True for the kinds whose blocks have bars along their edges: those of the backward, where lanes
/// are high enough.
[[nodiscard]] inline bool has_bars(SvgLayout const& layout, schedule::Kind kind) {
  return layout.lane >= 12 && kind != schedule::Kind::forward && schedule::is_compute(kind);
}

[[nodiscard]] inline std::string style_sheet(SvgLayout const& layout) {
  std::string css = text(
      ".title{font-size:15px;font-weight:600}.small{font-size:11px}.name{font-weight:600}"
      ".rank{text-anchor:end}.tick{text-anchor:middle}.grid{stroke-width:1;fill:none}"
      ".n{font-size:",
      format_shortest(10 * layout.font),
      "px;text-anchor:middle}\npath{fill:none;stroke-width:", layout.lane * 10,
      "}.h{stroke-width:", layout.lane * 5 - 8, "}.grid{stroke-width:1}");
  for_each_colour(layout, [&](ActionStyle const& style, std::string const& name, Rgb colour) {
    bool const bars = has_bars(layout, style.kind);
    css += text(".", name, "{stroke:", bars ? text("url(#", name, ")") : colour.hex(), "}");
    if (bars && layout.pairs) css += text(".h.", name, "{stroke:", colour.hex(), "}");
    css += text(".n.", name, "{fill:", text_colour(colour).hex(), ";stroke:none}");
    if (layout.shared) css += text(".q.", name, "{fill:", colour.hex(), ";stroke:none}");
  });
  css += text(".m0,.p0,.q0{stroke-width:", layout.lane >= 8 ? 20 : 10, "}");
  return themed(layout.options.theme, css);
}

/// Bars along the edges of the backward kinds, as hard steps of a vertical gradient.
[[nodiscard]] inline std::string gradients(SvgLayout const& layout) {
  constexpr Rgb ink{16, 24, 40};
  std::string out;
  for_each_colour(layout, [&](ActionStyle const& style, std::string const& name, Rgb colour) {
    if (!has_bars(layout, style.kind)) return;
    int const reach = layout.lane * 5;
    out += text("<linearGradient id=\"", name,
                "\" gradientUnits=\"userSpaceOnUse\" x1=\"0\" x2=\"0\" y1=\"-", reach, "\" y2=\"",
                reach, "\">");
    auto const stop = [&](std::string const& at, Rgb is) {
      out += text("<stop offset=\"", at, "\" stop-color=\"", is.hex(), "\"/>");
    };
    Rgb const edge = colour.towards(ink, 0.36);
    std::string const first = format_fixed(2.4 / layout.lane, 3);
    std::string const last = format_fixed(1 - 2.4 / layout.lane, 3);
    bool const above = style.kind != schedule::Kind::backward_input;
    bool const below = style.kind != schedule::Kind::backward_weight;
    if (above) stop(first, edge);
    stop(above ? first : "0", colour);
    if (below) stop(last, colour), stop(last, edge);
    out += "</linearGradient>";
  });
  return out;
}

}  // namespace stagger::report::detail
