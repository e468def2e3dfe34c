// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The document of the timeline picture: style sheet, heading, legend, panels, axis.

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <stagger/core/error.hpp>
#include <stagger/report/detail/action_style.hpp>
#include <stagger/report/detail/svg_document.hpp>
#include <stagger/report/detail/svg_lanes.hpp>
#include <stagger/report/detail/svg_layout.hpp>
#include <stagger/report/format.hpp>
#include <stagger/report/summary.hpp>
#include <stagger/report/svg_options.hpp>
#include <stagger/report/utf8.hpp>
#include <stagger/schedule/timeline.hpp>

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

class SvgWriter {
 public:
  SvgWriter(std::span<SvgPanel const> panels, SvgOptions const& options)
      : panels_(panels), layout_(panels, options) {}

  [[nodiscard]] std::string document() {
    SvgOptions const& options = layout_.options;
    std::string const head = heading();
    std::string captions, rails, blocks;
    std::vector<int> tops, bottoms;  // [panels] of the first lane; of the last, and its gap
    for (std::size_t p = 0; p < panels_.size(); ++p) {
      captions += caption(panels_[p]);
      tops.push_back(y_);
      draw_panel(p, rails, blocks);
      bottoms.push_back(y_);
      y_ += 14;
    }
    y_ = (bottoms.empty() ? y_ : bottoms.back()) + 2;
    std::string const axis = this->axis(tops, bottoms);
    std::string_view const title = options.title.empty() ? "pipeline timeline" : options.title;
    return svg_document(options.width, y_ + 8, title, style_sheet(layout_),
                        head + captions + "<g class=\"rail\">" + rails + "</g>\n" + axis + blocks,
                        "<defs>" + gradients(layout_) + "</defs>\n");
  }

 private:
  static constexpr int right = SvgLayout::right;
  static constexpr std::string_view shade_text = "lighter: later stage of the rank";

  /// Title at the left, legend at the right, on one line if it is long enough for both.
  [[nodiscard]] std::string heading() {
    std::string_view const title = layout_.options.title;
    std::string out;
    y_ = 12;
    if (!title.empty()) {
      out += svg_text(16, y_ + 14, "title", title);
      double const width = 8.2 * static_cast<double>(characters(title));
      if (width + legend_width() + 60 > layout_.options.width) y_ += 24;
    }
    legend(out);
    y_ += 26;
    return out;
  }

  [[nodiscard]] static int entry_width(std::string_view words) {
    return 6 * static_cast<int>(words.size()) + 36;
  }
  [[nodiscard]] int legend_width() const {
    int width = layout_.chunks > 1 ? entry_width(shade_text) - 20 : 0;
    for (std::size_t i = 0; i < action_styles.size(); ++i)
      width += layout_.present[i] ? entry_width(action_styles[i].legend) : 0;
    return width;
  }

  void legend(std::string& out) {
    int const width = layout_.options.width;
    int x = std::max(width - right - legend_width(), 16);
    auto const make_room = [&](int entry) {  // a picture too narrow for its legend takes more lines
      if (x == 16 || x + entry <= width) return;
      x = 16;
      y_ += 18;
    };
    std::size_t const chunks = layout_.chunks;
    double const scale = 12.0 / layout_.lane;  // the swatch is a block, made smaller
    for (std::size_t i = 0; i < action_styles.size(); ++i) {
      ActionStyle const& style = action_styles[i];
      if (!layout_.present[i]) continue;
      make_room(entry_width(style.legend));
      std::size_t const shades =
          schedule::travels(style.kind) ? 1 : std::min<std::size_t>(chunks, 4);
      auto const swatch = static_cast<int>(160 / scale / static_cast<double>(shades));
      out += text("<g transform=\"translate(", x, " ", y_ + 9, ")scale(",
                  format_fixed(0.1 * scale, 4), ")\">");
      for (std::size_t n = 0; n < shades; ++n) {
        std::size_t const chunk = shades < 2 ? 0 : n * (chunks - 1) / (shades - 1);
        out += text("<path class=\"", SvgKey{i, chunk}.name(), "\" d=\"M",
                    static_cast<int>(n) * swatch, " 0h", swatch, "\"/>");
      }
      out += "</g>" + svg_text(x + 21, y_ + 13, "small", style.legend);
      x += entry_width(style.legend);
    }
    if (chunks < 2) return;
    make_room(entry_width(shade_text) - 20);
    out += svg_text(x, y_ + 13, "small weak", shade_text);
  }

  /// Name of the panel and its figures.
  [[nodiscard]] std::string caption(SvgPanel const& panel) {
    bool const figures = layout_.options.figures;
    if (panel.name.empty() && !figures) return {};
    std::string out = text("<text class=\"small\" x=\"16\" y=\"", y_ + 11, "\">");
    if (!panel.name.empty()) out += "<tspan class=\"name\">" + xml(panel.name) + "</tspan>";
    if (figures)
      out +=
          text(panel.name.empty() ? "<tspan class=\"weak\">" : "<tspan class=\"weak\" dx=\"10\">",
               figures_of(panel), "</tspan>");
    y_ += 19;
    return out + "</text>\n";
  }

  /// Writes as many of the figures as fit into the width.
  [[nodiscard]] std::string figures_of(SvgPanel const& panel) const {
    Summary const summary = summarize(*panel.timeline);
    int peak = 0;
    for (int const one : summary.peak_in_flight) peak = std::max(peak, one);
    std::array<std::string, 3> const parts{"makespan " + duration(summary.makespan_s),
                                           text("bubble ", duration(summary.bubble_s), " (",
                                                format_percent(summary.bubble_share()), ")"),
                                           text("peak in flight ", peak)};
    double used = 7.0 * static_cast<double>(characters(panel.name)) + 42;
    std::string shown;
    for (std::string const& part : parts) {
      used += 6.3 * static_cast<double>(part.size() + 3);
      if (used > layout_.options.width) break;
      shown += (shown.empty() ? "" : " &#183; ") + part;
    }
    return shown;
  }

  [[nodiscard]] std::string duration(double seconds) const {
    if (layout_.options.time_unit.empty()) return format_seconds(seconds);
    std::string number = format_fixed(seconds, 2);
    while (number.back() == '0') number.pop_back();
    if (number.back() == '.') number.pop_back();
    return number;
  }

  /// The lanes of a panel, each with its rank's name and a rail, which shows where it is idle.
  void draw_panel(std::size_t p, std::string& rails, std::string& blocks) {
    int const lane = layout_.lane, left = layout_.left;
    double const start_s = layout_.extents[p].start_s;
    double const end = 10.0 * left + layout_.extents[p].length_s() * layout_.per_second;
    std::optional<SvgShares> shares;
    if (layout_.column[p] > 0)
      shares.emplace((action_styles.size() - 1) * layout_.chunks, 10 * layout_.lane_width(),
                     10 * layout_.column[p]);
    schedule::Timeline const& timeline = *panels_[p].timeline;
    for (int r = 0; r < timeline.ranks(); ++r) {
      double const middle = y_ + lane / 2.0;
      if (lane >= 12 || r % 8 == 0)
        blocks += text("<text class=\"small rank\" x=\"", left - 9, "\" y=\"",
                       format_shortest(middle + 4), "\">rank ", r, "</text>\n");
      rails += text("<rect x=\"", left, "\" y=\"", y_, "\" width=\"",
                    format_fixed(end / 10 - left, 1), "\" height=\"", lane, "\"/>");
      blocks +=
          text("<g transform=\"translate(", left, " ", format_shortest(middle), ")scale(.1)\">");
      if (shares)
        draw_shared_lane(blocks, layout_, timeline.row(r), start_s, *shares);
      else
        draw_lane(blocks, layout_, timeline.row(r), start_s);
      blocks += "</g>\n";
      y_ += lane + layout_.lane_gap();
    }
  }

  /// Marks through the lanes of every panel, labels below the last.
  [[nodiscard]] std::string axis(std::vector<int> const& tops, std::vector<int> const& bottoms) {
    SvgOptions const& options = layout_.options;
    bool const plain = !options.time_unit.empty();
    Ticks const ticks = make_ticks(layout_.length_s, (options.width - layout_.left) / 85, plain);
    std::string lines, labels;
    for (int i = 0; i * ticks.step_s <= layout_.length_s * 1.0001; ++i) {
      std::string const x =
          format_fixed(layout_.left + i * ticks.step_s * layout_.per_second / 10, 1);
      for (std::size_t p = 0; p < tops.size(); ++p)
        lines += text("M", x, " ", tops[p] - 3, "V", bottoms[p]);
      labels += text("<tspan x=\"", x, "\">", ticks.label(i), i > 0 && !plain ? " " : "",
                     i > 0 && !plain ? ticks.unit : "", "</tspan>");
    }
    y_ += 15;
    std::string out =
        text("<path class=\"grid\" d=\"", lines, "\"/>\n<text class=\"small weak tick\" y=\"", y_,
             "\">", labels, "</text>\n");
    if (plain) below(out, "time in " + std::string(options.time_unit));
    if (layout_.shared) {
      std::string const what = "blocks are narrower than a pixel:";
      std::string const instead = "the height of a colour is its share of the time";
      if (options.width >= 600)
        below(out, what + " " + instead);
      else
        below(out, what), below(out, instead);
    }
    return out;
  }

  /// A line in the middle below the axis.
  void below(std::string& out, std::string const& words) {
    y_ += 16;
    out += text("<text class=\"small weak tick\" y=\"", y_, "\" x=\"",
                (layout_.left + layout_.options.width - right) / 2, "\">", xml(words), "</text>\n");
  }

  std::span<SvgPanel const> panels_;
  SvgLayout const layout_;
  int y_ = 0;  ///< pixels from the top down to which the picture is complete
};

}  // namespace stagger::report::detail
