// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Timelines as a Gantt chart for a terminal, with one line per rank.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <stagger/core/error.hpp>
#include <stagger/report/detail/action_style.hpp>
#include <stagger/report/detail/blocks.hpp>
#include <stagger/report/format.hpp>
#include <stagger/report/summary.hpp>
#include <stagger/schedule/timeline.hpp>

namespace stagger::report {

struct TextOptions {
  int width = 100;               ///< characters in a line
  bool footer = true;            ///< a line below with makespan, bubble and the time of a column
  bool legend = false;           ///< a line at the end that says what letters and fillers mean
  std::string_view time_unit{};  ///< empty: seconds with a prefix; else plain numbers of this unit
};

/// One timeline of a chart and the heading above it; empty: none.
struct TextPanel {
  std::string_view name{};
  schedule::Timeline const* timeline = nullptr;  ///< not owned
};

namespace detail {

/// One or two actions (a pair) in a line of the picture.
struct TextBlock {
  double start_s = 0;
  double end_s = 0;
  schedule::Kind kind = schedule::Kind::forward;
  std::string label;  ///< the whole name, `3F0`
  std::string brief;  ///< the name without the stage, `F0`
};

[[nodiscard]] inline std::vector<TextBlock> text_blocks(std::span<schedule::Span const> row) {
  std::vector<TextBlock> blocks;
  for_each_block(row, [&](Block const& block) {
    std::size_t const stage = std::to_string(block.action.stage).size();  // characters
    std::string label = schedule::to_string(block.action);
    if (block.action.kind == schedule::Kind::reduce_gradient) label.replace(stage, label.npos, "R");
    std::string const brief = label.substr(stage);
    if (block.half == Half::second) {
      blocks.back().label += label;
      blocks.back().brief += brief;
    } else {
      blocks.push_back({block.start_s, block.end_s, block.action.kind, label, brief});
    }
  });
  return blocks;
}

/// Largest time of which all starts and lengths are multiples, 0 if there is none worth a grid.
[[nodiscard]] inline double common_unit(std::vector<std::vector<TextBlock>> const& rows,
                                        double origin_s, double length_s) {
  double const slack = length_s * 1e-6;
  double unit = 0;
  auto const reduce = [&](double value) {  // Euclid's algorithm, apart from rounding
    double a = unit;
    double b = value;
    while (b > slack) {
      double const rest = a - b * std::floor(a / b + 1e-6);
      a = b;
      b = rest;
    }
    if (value > slack) unit = a;
  };
  for (auto const& row : rows) {
    for (TextBlock const& block : row) {
      reduce(block.start_s - origin_s);
      reduce(block.end_s - block.start_s);
    }
  }
  return unit > length_s * 1e-4 ? unit : 0;
}

/// Cells of `cell` characters; `separated` cells keep their last character blank.
struct TextGrid {
  double origin_s = 0;
  double unit_s = 1;
  std::size_t columns = 0;
  std::size_t cell = 1;
  bool separated = false;
  bool brief = false;  ///< labels without stages

  [[nodiscard]] std::size_t column(double time_s) const {
    double const at = std::floor((time_s - origin_s) / unit_s + 0.5 + 1e-9);
    return std::min(static_cast<std::size_t>(std::max(at, 0.0)), columns);
  }

  [[nodiscard]] std::string line(std::vector<TextBlock> const& blocks) const {
    std::string out;
    std::size_t at = 0;
    for (TextBlock const& block : blocks) {
      std::size_t const from = std::max(column(block.start_s), at);
      std::size_t const to = column(block.end_s);
      if (to <= from) continue;  // shorter than half a column
      idle(out, from - at);
      std::size_t const width = (to - from) * cell - (separated ? 1 : 0);
      ActionStyle const& style = style_of(block.kind);
      std::string shown = brief ? block.brief : block.label;
      if (shown.size() > width) shown = style.legend[0];
      shown.append(width - shown.size(), to - from == 1 && separated ? ' ' : style.filler);
      out += shown;
      if (separated) out += ' ';
      at = to;
    }
    idle(out, columns - at);
    return out;
  }

 private:
  void idle(std::string& out, std::size_t count) const {
    for (std::size_t i = 0; i < count; ++i) {
      out.append(separated ? cell - 1 : cell, '.');
      if (separated) out += ' ';
    }
  }
};

/// Chooses columns and labels: a grid with whole names, a grid with brief ones, or a line in
/// proportion to time.
[[nodiscard]] inline TextGrid lay_out(std::vector<std::vector<TextBlock>> const& rows,
                                      Extent const& extent, bool several, std::size_t width) {
  double const length = extent.length_s();
  TextGrid grid;
  grid.brief = !several;
  grid.separated = true;
  if (!(length > 0)) return grid;
  grid.origin_s = extent.start_s;
  grid.unit_s = common_unit(rows, extent.start_s, length);
  std::size_t whole = 1;
  std::size_t brief = 1;
  std::size_t blocks = 0;
  for (auto const& row : rows) {
    blocks += row.size();
    for (TextBlock const& block : row) {
      whole = std::max(whole, block.label.size());
      brief = std::max(brief, block.brief.size());
    }
  }
  if (grid.unit_s > 0) {
    double const cells = std::max(std::floor(length / grid.unit_s + 0.5 + 1e-9), 1.0);
    grid.columns = static_cast<std::size_t>(cells);
    grid.cell = 1 + (grid.brief ? brief : whole);
    if (grid.columns * grid.cell <= width) return grid;
    grid.brief = true;
    grid.cell = 1 + brief;
    if (grid.columns * grid.cell <= width) return grid;
  }
  grid.unit_s = length / static_cast<double>(width);
  grid.columns = width;
  grid.cell = 1;
  grid.separated = false;
  std::size_t fitting = 0;  // stages are named only where nearly every block has room for them
  for (auto const& row : rows) {
    for (TextBlock const& block : row) {
      if (grid.column(block.start_s) + block.label.size() <= grid.column(block.end_s)) ++fitting;
    }
  }
  grid.brief = !several || fitting * 10 < blocks * 9;
  return grid;
}

/// "F-- forward, B== backward, ... idle": the kinds that occur, as they look in a line.
[[nodiscard]] inline std::string legend_of(std::vector<std::vector<TextBlock>> const& rows) {
  std::string out;
  for (ActionStyle const& style : action_styles) {
    std::string_view const legend = style.legend;
    bool const there = std::any_of(rows.begin(), rows.end(), [&](auto const& row) {
      return std::any_of(row.begin(), row.end(), [&](TextBlock const& block) {
        bool const in_pair = schedule::is_compute(style.kind) &&
                             block.brief.find(legend.front()) != std::string::npos;
        return block.kind == style.kind || in_pair;
      });
    });
    if (there)
      out += text(legend.substr(0, 1), std::string(2, style.filler),
                  legend.substr(legend.find(' ')), ", ");
  }
  return out + "... idle\n";
}

}  // namespace detail

/// Draws timelines below each other on one axis of time, with one line per rank.
///
///     rank 0 | F0 F1 F2 F3 .. .. .. .. .. .. B0 B1 B2 B3 |
///     rank 3 | .. .. .. F0 F1 F2 F3 B0 B1 B2 B3 .. .. .. |
///
/// Where all times are multiples of one unit and the grid fits into `width`, a column is that unit
/// and as wide as the longest label; an action of several columns is filled up (`B0===`). Otherwise
/// the line has `width` characters in proportion to time, with labels where they fit and the
/// action's letter elsewhere; an action of less than half a character may be missing. Labels name
/// the stage (`4F0`) where a rank has several and there is room. The halves of an overlapped pair
/// stand together (`F3B1`); a reduction of gradients is `R`; messages are not drawn.
///
/// @throws Error  bad_data for a time that is not finite or an end before its start
[[nodiscard]] inline std::string gantt(std::span<TextPanel const> panels,
                                       TextOptions const& options = {}) {
  detail::Extent extent;
  std::vector<std::vector<detail::TextBlock>> rows;  // of all panels
  bool several = false;
  int ranks = 1;
  for (TextPanel const& panel : panels) {
    detail::require_times(*panel.timeline);
    detail::Extent const own = detail::extent(panel.timeline->spans);
    extent.add(own.start_s, own.end_s);
    ranks = std::max(ranks, panel.timeline->ranks());
    for (int r = 0; r < panel.timeline->ranks(); ++r) {
      rows.push_back(detail::text_blocks(panel.timeline->row(r)));
      several = several || detail::stages_of(panel.timeline->row(r)).size() > 1;
    }
  }
  std::size_t const digits = std::to_string(ranks - 1).size();
  int const width = std::max(options.width - static_cast<int>(digits) - 8, 10);
  detail::TextGrid const grid =
      detail::lay_out(rows, extent, several, static_cast<std::size_t>(width));
  auto const time = [&](double seconds) {
    return options.time_unit.empty() ? format_seconds(seconds)
                                     : format_shortest(std::round(seconds * 1e4) / 1e4);
  };

  std::string out;
  std::size_t row = 0;
  for (TextPanel const& panel : panels) {
    if (!panel.name.empty()) out += text(panel.name, "\n");
    for (int r = 0; r < panel.timeline->ranks(); ++r) {
      std::string const number = std::to_string(r);
      out += text("rank ", std::string(digits - number.size(), ' '), number,
                  grid.separated ? " | " : " |", grid.line(rows[row++]), "|\n");
    }
    if (!options.footer) continue;
    Summary const summary = summarize(*panel.timeline);
    out += text("makespan ", time(summary.makespan_s), ", bubble ", time(summary.bubble_s), " (",
                format_percent(summary.bubble_share()), "), one column is ", time(grid.unit_s));
    if (!options.time_unit.empty()) out += text("; time in ", options.time_unit);
    out += '\n';
  }
  return options.legend ? out + detail::legend_of(rows) : out;
}

/// Draws one timeline.
[[nodiscard]] inline std::string gantt(schedule::Timeline const& timeline,
                                       TextOptions const& options = {}) {
  TextPanel const panel{{}, &timeline};
  return gantt(std::span<TextPanel const>{&panel, 1}, options);
}

}  // namespace stagger::report
