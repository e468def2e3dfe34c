// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Lays out and writes the timeline picture.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <stagger/core/error.hpp>
#include <stagger/report/detail/blocks.hpp>
#include <stagger/report/detail/escape.hpp>
#include <stagger/report/detail/svg_lanes.hpp>
#include <stagger/report/detail/svg_style.hpp>
#include <stagger/report/detail/ticks.hpp>
#include <stagger/report/format.hpp>
#include <stagger/report/summary.hpp>
#include <stagger/report/svg_options.hpp>
#include <stagger/schedule/timeline.hpp>

namespace stagger::report::detail {

/// Writes one document.
class SvgWriter : private SvgLanes {
 public:
  SvgWriter(std::span<SvgPanel const> panels, SvgOptions const& options)
      : SvgLanes(options), panels_(panels) {
    if (options.width < 200) {
      raise(Errc::bad_configuration, "an SVG picture ", options.width,
            " pixels wide; give a width of 200 or more");
    }
    std::size_t ranks = 1;
    for (SvgPanel const& panel : panels_) {
      if (panel.timeline == nullptr) {
        raise(Errc::bad_configuration,
              "a panel of an SVG picture has no timeline; point it at one");
      }
      require_times(*panel.timeline);
      ranks = std::max(ranks, panel.timeline->rows.size());
      extents_.push_back(extent(*panel.timeline));
      length_s_ = std::max(length_s_, extents_.back().length_s());
      for (auto const& row : panel.timeline->rows)
        chunks_ = std::max(chunks_, stages_of(row).size());
    }
    lane_ = ranks <= 8 ? 26 : ranks <= 16 ? 20 : ranks <= 32 ? 14 : ranks <= 128 ? 8 : 3;
    left_ = 26 + 7 * static_cast<int>(std::to_string(ranks - 1).size() + 5);
    per_second_ = length_s_ > 0 ? 10.0 * (options_.width - left_ - right) / length_s_ : 0;
    for (SvgPanel const& panel : panels_) survey(*panel.timeline);
    choose_font();
  }

  [[nodiscard]] std::string document() {
    std::string body = head();
    std::string rails;
    std::string blocks;
    for (std::size_t p = 0; p < panels_.size(); ++p) {
      SvgPanel const& panel = panels_[p];
      caption(body, panel);
      tops_.push_back(y_);
      double const end = 10.0 * left_ + extents_[p].length_s() * per_second_;
      std::optional<SvgShares> shares = shares_of(p);
      for (std::size_t r = 0; r < panel.timeline->rows.size(); ++r) {
        begin_lane(rails, blocks, r, end);
        if (shares)
          shared_lane(blocks, panel.timeline->rows[r], extents_[p].start_s, *shares);
        else
          lane(blocks, panel.timeline->rows[r], extents_[p].start_s);
        blocks += "</g>\n";
        y_ += lane_ + lane_gap();
      }
      bottoms_.push_back(y_);
      y_ += panel_gap;
    }
    y_ = (bottoms_.empty() ? y_ : bottoms_.back()) + 2;
    body += "<g class=\"rail\">" + rails + "</g>\n" + axis() + blocks;
    std::string const width = std::to_string(options_.width);
    std::string const height = std::to_string(y_ + 8);
    std::string out =
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" + width + "\" height=\"" + height;
    out += "\" viewBox=\"0 0 " + width + " " + height + "\" role=\"img\" font-family=\"";
    out += "Inter,'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif\">\n<title>";
    append_xml(out,
               options_.title.empty() ? std::string_view{"pipeline timeline"} : options_.title);
    out += "</title>\n<style>" + style() + "</style>\n<defs>" + gradients() +
           "</defs>\n<rect class=\"page\" width=\"";
    out += width + "\" height=\"" + height + "\" rx=\"6\"/>\n" + body + "</svg>\n";
    return out;
  }

 private:
  static constexpr int panel_gap = 14;

  /// Title at the left, legend at the right, on one line if it is long enough for both.
  [[nodiscard]] std::string head() {
    std::string out;
    y_ = 12;
    double const title = 8.2 * static_cast<double>(characters(options_.title));
    if (!options_.title.empty()) {
      out += "<text class=\"title\" x=\"16\" y=\"" + std::to_string(y_ + 14) + "\">";
      append_xml(out, options_.title);
      out += "</text>\n";
      if (title + legend_width() + 60 > options_.width) y_ += 24;
    }
    legend(out);
    y_ += 26;
    return out;
  }

  struct LegendEntry {
    schedule::Kind kind;
    char const* text;
  };
  static constexpr std::array<LegendEntry, 6> entries{
      {{schedule::Kind::forward, "F forward"},
       {schedule::Kind::backward, "B backward"},
       {schedule::Kind::backward_input, "I input gradient"},
       {schedule::Kind::backward_weight, "W weight gradient"},
       {schedule::Kind::reduce_gradient, "R gradient reduction"},
       {schedule::Kind::send_forward, "message"}}};
  static constexpr std::string_view shade_text = "lighter: later stage of the rank";

  [[nodiscard]] static int entry_width(std::string_view text) {
    return 6 * static_cast<int>(text.size()) + 36;
  }
  [[nodiscard]] int legend_width() const {
    int width = chunks_ > 1 ? entry_width(shade_text) - 20 : 0;
    for (LegendEntry const& entry : entries)
      width += present_[index(entry.kind)] ? entry_width(entry.text) : 0;
    return width;
  }

  void legend(std::string& out) {
    int x = std::max(options_.width - right - legend_width(), 16);
    auto const make_room = [&](int width) {  // a picture too narrow for its legend takes more lines
      if (x == 16 || x + width <= options_.width) return;
      x = 16;
      y_ += 18;
    };
    for (LegendEntry const& entry : entries) {
      if (!present_[index(entry.kind)]) continue;
      make_room(entry_width(entry.text));
      std::size_t const shades =
          schedule::is_message(entry.kind) ? 1 : std::min<std::size_t>(chunks_, 4);
      double const scale = 12.0 / lane_;  // the swatch is a block, made smaller
      out += "<g transform=\"translate(" + std::to_string(x) + " " + std::to_string(y_ + 9) +
             ")scale(";
      out += format_fixed(0.1 * scale, 4) + ")\">";
      for (std::size_t i = 0; i < shades; ++i) {
        std::size_t const chunk = shades < 2 ? 0 : i * (chunks_ - 1) / (shades - 1);
        auto const width = static_cast<int>(160 / scale / static_cast<double>(shades));
        out += "<path class=\"" + name({entry.kind, chunk, Half::none}) + "\" d=\"M" +
               std::to_string(static_cast<int>(i) * width);
        out += " 0h" + std::to_string(width) + "\"/>";
      }
      out += "</g><text class=\"small\" x=\"" + std::to_string(x + 21) + "\" y=\"" +
             std::to_string(y_ + 13) + "\">" + entry.text + "</text>\n";
      x += entry_width(entry.text);
    }
    if (chunks_ > 1) {
      make_room(entry_width(shade_text) - 20);
      out += "<text class=\"small weak\" x=\"" + std::to_string(x) + "\" y=\"" +
             std::to_string(y_ + 13) + "\">";
      (out += shade_text) += "</text>\n";
    }
  }

  /// Name of the panel and its figures.
  void caption(std::string& out, SvgPanel const& panel) {
    if (panel.name.empty() && !options_.figures) return;
    out += "<text class=\"small\" x=\"16\" y=\"" + std::to_string(y_ + 11) + "\">";
    if (!panel.name.empty()) {
      out += "<tspan class=\"name\">";
      append_xml(out, panel.name);
      out += "</tspan>";
    }
    if (options_.figures) {
      out += panel.name.empty() ? "<tspan class=\"weak\">" : "<tspan class=\"weak\" dx=\"10\">";
      out += figures(*panel.timeline, panel.name) + "</tspan>";
    }
    out += "</text>\n";
    y_ += 19;
  }

  /// As many of the figures as the width has room for.
  [[nodiscard]] std::string figures(schedule::Timeline const& timeline,
                                    std::string_view name) const {
    Summary const summary = summarize(timeline);
    int peak = 0;
    for (int const one : summary.peak_in_flight) peak = std::max(peak, one);
    std::string const share = " (" + format_percent(summary.bubble_share()) + ")";
    std::array<std::string, 3> const parts{"makespan " + duration(summary.makespan_s),
                                           "bubble " + duration(summary.bubble_s) + share,
                                           "peak in flight " + std::to_string(peak)};
    double used = 7.0 * static_cast<double>(characters(name)) + 42;
    std::string text;
    for (std::string const& part : parts) {
      used += 6.3 * static_cast<double>(part.size() + 3);
      if (used > options_.width) break;
      text += (text.empty() ? "" : " &#183; ") + part;
    }
    return text;
  }

  [[nodiscard]] std::string duration(double seconds) const {
    if (options_.time_unit.empty()) return format_seconds(seconds);
    std::string text = format_fixed(seconds, 2);
    while (text.back() == '0') text.pop_back();
    if (text.back() == '.') text.pop_back();
    return text;
  }

  /// A rank's name and rail.
  void begin_lane(std::string& rails, std::string& out, std::size_t rank, double end) {
    std::string const middle = format_shortest(y_ + lane_ / 2.0);
    if (lane_ >= 12 || rank % 8 == 0) {
      out += "<text class=\"small rank\" x=\"" + std::to_string(left_ - 9) + "\" y=\"" +
             format_shortest(y_ + lane_ / 2.0 + 4);
      out += "\">rank " + std::to_string(rank) + "</text>\n";
    }
    rails += "<rect x=\"" + std::to_string(left_) + "\" y=\"" + std::to_string(y_) + "\" width=\"";
    rails += format_fixed(end / 10 - left_, 1) + "\" height=\"" + std::to_string(lane_) + "\"/>";
    out += "<g transform=\"translate(" + std::to_string(left_) + " " + middle + ")scale(.1)\">";
  }

  /// Marks through the lanes of every panel, labels below the last.
  [[nodiscard]] std::string axis() {
    bool const plain = !options_.time_unit.empty();
    Ticks const ticks = make_ticks(length_s_, (options_.width - left_) / 85, plain);
    std::string lines;
    std::string labels;
    for (int i = 0; i * ticks.step_s <= length_s_ * 1.0001; ++i) {
      double const x = left_ + i * ticks.step_s * per_second_ / 10;
      for (std::size_t panel = 0; panel < tops_.size(); ++panel) {
        lines += text("M", format_fixed(x, 1), " ", tops_[panel] - 3, "V", bottoms_[panel]);
      }
      labels += "<tspan x=\"" + format_fixed(x, 1) + "\">" + ticks.label(i);
      if (i > 0 && !plain) labels += std::string(" ") + ticks.unit;
      labels += "</tspan>";
    }
    y_ += 15;
    std::string out = "<path class=\"grid\" d=\"" + lines + "\"/>\n";
    out +=
        "<text class=\"small weak tick\" y=\"" + std::to_string(y_) + "\">" + labels + "</text>\n";
    if (plain) below(out, "time in " + std::string(options_.time_unit));
    if (any_shared()) {
      std::string const what = "blocks are narrower than a pixel:";
      std::string const instead = "the height of a colour is its share of the time";
      if (options_.width >= 600)
        below(out, what + " " + instead);
      else
        below(out, what), below(out, instead);
    }
    return out;
  }

  /// A line in the middle below the axis.
  void below(std::string& out, std::string const& text) {
    y_ += 16;
    out += "<text class=\"small weak tick\" y=\"" + std::to_string(y_) + "\" x=\"";
    out += std::to_string((left_ + options_.width - right) / 2) + "\">";
    append_xml(out, text);
    out += "</text>\n";
  }

  template <class F> void for_each_colour(F&& f) const {
    for (LegendEntry const& entry : entries) {
      if (!present_[index(entry.kind)]) continue;
      bool const compute = !schedule::is_message(entry.kind);
      for (std::size_t c = 0; c < (compute ? std::max<std::size_t>(chunks_, 1) : 1); ++c) {
        f(Key{entry.kind, c, Half::none}, chunk_colour(entry.kind, c, compute ? chunks_ : 1));
      }
    }
  }

  [[nodiscard]] std::string style() const {
    std::string const font = format_shortest(10 * font_);
    std::string css = scheme_rules(options_.theme == SvgTheme::dark ? dark_scheme : light_scheme);
    css +=
        ".title{font-size:15px;font-weight:600}.small{font-size:11px}.name{font-weight:600}.rank{"
        "text-anchor:end}";
    css += ".tick{text-anchor:middle}.grid{stroke-width:1;fill:none}.n{font-size:" + font +
           "px;text-anchor:middle}\n";
    css += "path{fill:none;stroke-width:" + std::to_string(lane_ * 10) + "}";
    css += ".h{stroke-width:" + std::to_string(lane_ * 5 - 8) + "}.grid{stroke-width:1}";
    for_each_colour([&](Key const& key, Rgb colour) {
      bool const plain = !has_bars(key.kind);
      std::string const id = name(key);
      css += "." + id + "{stroke:" + (plain ? colour.hex() : "url(#" + id + ")") + "}";
      if (!plain && pairs_) css += ".h." + id + "{stroke:" + colour.hex() + "}";
      css += ".n." + id + "{fill:" + text_colour(colour).hex() + ";stroke:none}";
      if (any_shared()) css += ".q." + id + "{fill:" + colour.hex() + ";stroke:none}";
    });
    css += ".m0{stroke-width:" + std::string(lane_ >= 8 ? "20" : "10") + "}";
    if (options_.theme == SvgTheme::automatic) {
      css += "\n@media(prefers-color-scheme:dark){" + scheme_rules(dark_scheme) + "}";
    }
    return css;
  }

  [[nodiscard]] bool has_bars(schedule::Kind kind) const {
    return lane_ >= 12 && kind != schedule::Kind::forward && schedule::is_compute(kind);
  }

  /// Bars along the edges of the backward kinds, as hard steps of a vertical gradient.
  [[nodiscard]] std::string gradients() const {
    std::string out;
    for_each_colour([&](Key const& key, Rgb colour) {
      if (!has_bars(key.kind)) return;
      std::string const edge = colour.towards(ink, 0.36).hex();
      std::string const first = format_fixed(2.4 / lane_, 3);
      std::string const last = format_fixed(1 - 2.4 / lane_, 3);
      std::string const main = colour.hex();
      bool const above = key.kind != schedule::Kind::backward_input;
      bool const below = key.kind != schedule::Kind::backward_weight;
      std::string const reach = std::to_string(lane_ * 5);
      out += "<linearGradient id=\"" + name(key) +
             "\" gradientUnits=\"userSpaceOnUse\" x1=\"0\" x2=\"0\" y1=\"-" + reach;
      out += "\" y2=\"" + reach + "\">";
      auto const stop = [&](std::string const& at, std::string const& is) {
        out += "<stop offset=\"" + at + "\" stop-color=\"" + is + "\"/>";
      };
      if (above) stop(first, edge);
      stop(above ? first : "0", main);
      if (below) stop(last, main), stop(last, edge);
      out += "</linearGradient>";
    });
    return out;
  }

  std::span<SvgPanel const> panels_;
  double length_s_ = 0;            ///< of the longest panel
  int y_ = 0;                      ///< how far down the picture is written
  std::vector<int> tops_{};        ///< [panels] of the first lane
  std::vector<int> bottoms_{};     ///< [panels] of the last lane, and its gap
  std::vector<Extent> extents_{};  ///< [panels]
};

}  // namespace stagger::report::detail
