// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Charts as SVG pictures: lines over x, such as the loss over time.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>

#include <stagger/core/error.hpp>
#include <stagger/report/detail/svg_document.hpp>
#include <stagger/report/format.hpp>
#include <stagger/report/svg_options.hpp>
#include <stagger/report/utf8.hpp>

namespace stagger::report {

struct ChartPoint {
  double x = 0;
  double y = 0;
};

/// A line from point to point. A single point is drawn as a dot.
struct ChartLine {
  std::string_view name{};               ///< in the legend
  std::span<ChartPoint const> points{};  ///< from -1e15 to 1e15; x does not fall
};

struct ChartOptions {
  int width = 720;           ///< pixels, 200 to 10000
  int height = 400;          ///< pixels, 200 to 10000, with title, legend and labels
  std::string_view title{};  ///< above the chart; empty: none
  std::string_view x{};      ///< below the axis, with the unit
  std::string_view y{};      ///< beside the axis, with the unit
  SvgTheme theme = SvgTheme::light;
};

namespace detail {

/// The values that an axis shows.
struct ChartRange {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();

  void add(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
  /// Begins at 0 unless the values lie far from it; never empty.
  void round() {
    if (low > high) low = 0, high = 1;  // no points
    if (low > 0 && low <= high / 2) low = 0;
    double const size = std::max(std::fabs(low), std::fabs(high));
    if (high - low > std::max(1e-12, 1e-9 * size)) return;
    double const around = low == 0 ? 1 : std::fabs(low) / 2;
    low -= around;
    high += around;
  }
};

class ChartWriter {
 public:
  ChartWriter(std::span<ChartLine const> lines, ChartOptions const& options)
      : lines_(lines), options_(options) {
    for (int const size : {options.width, options.height})
      if (size < 200 || size > 10000)
        raise(Errc::bad_configuration, "a chart of ", options.width, " by ", options.height,
              " pixels cannot be drawn; use 200 to 10000 each");
    for (ChartLine const& line : lines) {
      require_points(line);
      for (ChartPoint const& point : line.points) {
        x_.add(point.x);
        y_.add(point.y);
      }
    }
    x_.round();
    y_.round();
  }

  [[nodiscard]] std::string document() {
    std::string const head = heading();
    bottom_ = options_.height - (options_.x.empty() ? 30 : 48);
    std::string const marks = axes();
    std::string const drawn = curves();
    std::string_view const title = options_.title.empty() ? "chart" : options_.title;
    return svg_document(options_.width, options_.height, title, styles(), head + marks + drawn);
  }

 private:
  static constexpr int right = 20;
  static constexpr int entry_height = 18;
  /// Distinct under every common colour blindness (M. Okabe and K. Ito, "Color Universal Design").
  static constexpr std::array<char const*, 7> colours{"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                                      "#e69f00", "#56b4e9", "#8a8f98"};
  static constexpr std::array<char const*, 4> dashes{"", "8 4", "2 3", "9 3 2 3"};

  static void require_points(ChartLine const& line) {
    constexpr double most = 1e15;  // labels of larger values would not fit
    for (std::size_t i = 0; i < line.points.size(); ++i) {
      ChartPoint const& point = line.points[i];
      if (!(std::fabs(point.x) <= most && std::fabs(point.y) <= most))
        raise(Errc::bad_data, "point ", i, " of the line '", std::string(line.name), "' lies at ",
              format_shortest(point.x), ", ", format_shortest(point.y),
              "; give numbers from -1e15 to 1e15, and leave out what is not known");
      if (i > 0 && point.x < line.points[i - 1].x)
        raise(Errc::bad_data, "point ", i, " of the line '", std::string(line.name), "' at x ",
              format_shortest(point.x), " lies before the one at ",
              format_shortest(line.points[i - 1].x), "; give the points in the order of x");
    }
  }

  [[nodiscard]] std::string styles() const {
    return themed(options_.theme,
                  ".title{font-size:15px;font-weight:600}.small{font-size:11px}"
                  ".x{text-anchor:middle}.y{text-anchor:end}.grid{stroke-width:1;fill:none}"
                  ".line{fill:none;stroke-width:2;stroke-linejoin:round;stroke-linecap:round}");
  }

  /// The style of a line's strokes and dots.
  [[nodiscard]] static std::string look(std::size_t line) {
    std::string const colour = colours[line % colours.size()];
    char const* const dash = dashes[line / colours.size() % dashes.size()];
    return text("stroke=\"", colour, "\"",
                *dash == '\0' ? std::string() : text(" stroke-dasharray=\"", dash, "\""));
  }

  /// The title, and below it as many lines of legend as are needed.
  [[nodiscard]] std::string heading() {
    std::string out;
    top_ = 14;
    if (!options_.title.empty()) {
      out += svg_text(16, 28, "title", options_.title);
      top_ += 24;
    }
    int x = 16;
    bool any = false;
    for (std::size_t l = 0; l < lines_.size(); ++l) {
      if (lines_[l].name.empty()) continue;
      int const entry = 6 * static_cast<int>(characters(lines_[l].name)) + 48;
      if (any && x + entry > options_.width) x = 16, top_ += entry_height;
      out += text("<path class=\"line\" ", look(l), " d=\"M", x, " ", top_ + 6, "h22\"/>",
                  svg_text(x + 28, top_ + 10, "small", lines_[l].name));
      x += entry;
      any = true;
    }
    top_ += any ? entry_height + 8 : 8;
    return out;
  }

  /// The marks of an axis, at multiples of a step.
  struct Marks {
    Ticks ticks{};
    std::int64_t first = 0, last = 0;
  };
  /// About `wanted` marks, at least two.
  [[nodiscard]] static Marks marks_of(ChartRange const& range, int wanted) {
    Marks marks;
    do {
      marks.ticks = make_ticks(range.high - range.low, wanted++, true);
      double const step = marks.ticks.step_s;
      marks.first = static_cast<std::int64_t>(std::ceil(range.low / step - 1e-4));
      marks.last = static_cast<std::int64_t>(std::floor(range.high / step + 1e-4));
    } while (marks.last <= marks.first);
    return marks;
  }

  /// Marks of both axes, with labels and names.
  [[nodiscard]] std::string axes() {
    Marks const up = marks_of(y_, (bottom_ - top_) / 45);
    std::size_t longest = 0;
    for (std::int64_t i = up.first; i <= up.last; ++i)
      longest = std::max(longest, up.ticks.label(i).size());
    left_ =
        24 + static_cast<int>(6.5 * static_cast<double>(longest)) + (options_.y.empty() ? 0 : 18);
    std::string grid, labels;
    for (std::int64_t i = up.first; i <= up.last; ++i) {
      double const at = y_of(static_cast<double>(i) * up.ticks.step_s);
      grid += text("M", left_, " ", format_fixed(at, 1), "H", options_.width - right);
      labels += text("<text class=\"small weak y\" x=\"", left_ - 7, "\" y=\"",
                     format_fixed(at + 4, 1), "\">", up.ticks.label(i), "</text>");
    }
    Marks const along = marks_of(x_, (options_.width - left_ - right) / 85);
    for (std::int64_t i = along.first; i <= along.last; ++i) {
      std::string const at = format_fixed(x_of(static_cast<double>(i) * along.ticks.step_s), 1);
      grid += text("M", at, " ", top_, "V", bottom_);
      labels += text("<text class=\"small weak x\" x=\"", at, "\" y=\"", bottom_ + 16, "\">",
                     along.ticks.label(i), "</text>");
    }
    std::string out = text("<path class=\"grid\" d=\"", grid, "\"/>\n", labels, "\n");
    if (!options_.x.empty())
      out +=
          svg_text((left_ + options_.width - right) / 2, bottom_ + 34, "small weak x", options_.x);
    if (!options_.y.empty())
      out += text("<text class=\"small weak x\" transform=\"translate(18 ", (top_ + bottom_) / 2,
                  ")rotate(-90)\">", xml(options_.y), "</text>\n");
    return out;
  }

  [[nodiscard]] std::string curves() const {
    std::string out;
    for (std::size_t l = 0; l < lines_.size(); ++l) {
      auto const points = lines_[l].points;
      if (points.size() == 1)
        out += text("<circle fill=\"", colours[l % colours.size()], "\" r=\"3\" cx=\"",
                    format_fixed(x_of(points[0].x), 1), "\" cy=\"",
                    format_fixed(y_of(points[0].y), 1), "\"/>\n");
      if (points.size() > 1)
        out += text("<path class=\"line\" ", look(l), " d=\"", path(points), "\"/>\n");
    }
    return out;
  }

  /// The path of a line as SVG. Of many points in a column of half a pixel it has only the first,
  /// the last, the lowest and the highest.
  [[nodiscard]] std::string path(std::span<ChartPoint const> points) const {
    std::string out;
    auto const add = [&](ChartPoint const& point) {
      out += text(out.empty() ? "M" : "L", format_fixed(x_of(point.x), 1), " ",
                  format_fixed(y_of(point.y), 1));
    };
    for (std::size_t begin = 0; begin < points.size();) {
      std::size_t end = begin + 1;
      auto const column = std::floor(2 * x_of(points[begin].x));
      while (end < points.size() && std::floor(2 * x_of(points[end].x)) == column) ++end;
      auto const here = points.subspan(begin, end - begin);
      auto const [low, high] =
          std::minmax_element(here.begin(), here.end(),
                              [](ChartPoint const& a, ChartPoint const& b) { return a.y < b.y; });
      std::array<std::ptrdiff_t, 4> kept{0, low - here.begin(), high - here.begin(),
                                         std::ssize(here) - 1};
      std::sort(kept.begin(), kept.end());
      for (std::size_t k = 0; k < kept.size(); ++k)
        if (k == 0 || kept[k] != kept[k - 1]) add(here[static_cast<std::size_t>(kept[k])]);
      begin = end;
    }
    return out;
  }

  [[nodiscard]] double x_of(double x) const {
    return left_ + (x - x_.low) / (x_.high - x_.low) * (options_.width - right - left_);
  }
  [[nodiscard]] double y_of(double y) const {
    return bottom_ - (y - y_.low) / (y_.high - y_.low) * (bottom_ - top_);
  }

  std::span<ChartLine const> lines_;
  ChartOptions options_;
  ChartRange x_, y_;
  int top_ = 0, bottom_ = 0, left_ = 0;  // of the chart itself, in pixels
};

}  // namespace detail

/// Draws lines in one chart. Each axis begins at 0 unless its values lie far from 0, or below it.
/// The colours of the first seven lines differ; further ones are dashed.
///
/// @return        a whole SVG document; the same bytes for the same input, in every locale
/// @throws Error  bad_data for a point that is not finite, beyond 1e15, or before the last one,
///                bad_configuration for a size out of range
[[nodiscard]] inline std::string chart(std::span<ChartLine const> lines,
                                       ChartOptions const& options = {}) {
  return detail::ChartWriter(lines, options).document();
}

}  // namespace stagger::report
