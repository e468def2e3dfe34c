// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The lanes of the timeline picture: blocks, their numbers, messages.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include <stagger/core/error.hpp>
#include <stagger/report/detail/blocks.hpp>
#include <stagger/report/detail/svg_layout.hpp>
#include <stagger/report/detail/svg_shares.hpp>
#include <stagger/schedule/timeline.hpp>

namespace stagger::report::detail {

/// Draws strokes of one class. A stroke is as wide as its lane is high, in tenths of a pixel:
/// `h74m10 0`.
inline void draw_strokes(std::string& out, std::string const& name, int y,
                         std::vector<SvgMark> const& marks) {
  if (marks.empty()) return;
  out += "<path class=\"" + name + "\" d=\"";
  long long pen = 0;
  for (std::size_t i = 0; i < marks.size(); ++i) {
    out += i == 0 ? text("M", marks[i].from, " ", y) : text("m", marks[i].from - pen, " 0");
    out += text("h", marks[i].width);
    pen = marks[i].from + marks[i].width;
  }
  out += "\"/>";
}

/// Draws what travels as thin lines: along the bottom of the lane, pulls along its top.
/// @param marks_of  of an index in action_styles
template <class MarksOf>
void draw_messages(std::string& out, SvgLayout const& layout, MarksOf const& marks_of) {
  if (!layout.options.messages) return;
  int const edge = layout.lane * 5 + (layout.lane >= 8 ? 16 : 5);
  for (std::size_t i = 0; i < action_styles.size(); ++i) {
    if (!layout.present[i] || !schedule::travels(action_styles[i].kind)) continue;
    bool const top = action_styles[i].kind == schedule::Kind::pull;
    draw_strokes(out, SvgKey{i}.name(), top ? -edge : edge, marks_of(i));
  }
}

/// Writes the numbers of blocks of one class, where they fit.
inline void draw_numbers(std::string& out, SvgLayout const& layout, SvgKey const& key,
                         std::vector<SvgMark> const& marks) {
  std::string spans;
  for (SvgMark const& one : marks) {
    // Pixels of the label and its margins; digits of the usual fonts are 0.56 to 0.64 em wide.
    double const width = 0.6 * layout.font * static_cast<double>(one.label.size()) + 1.5;
    if (width > 0.1 * static_cast<double>(one.width) + 0.05) continue;
    spans += text("<tspan x=\"", one.from + one.width / 2, "\">", one.label, "</tspan>");
  }
  if (spans.empty()) return;
  auto const base = std::lround(3.6 * layout.font);  // half the height of a digit below the middle
  out += text("<text class=\"n ", SvgKey{key.style, key.chunk}.name(), "\" y=\"",
              layout.offset(key.half) + base, "\">", spans, "</text>");
}

/// The index of a stage's colours on its rank. A reduction of a stage that the row never computes
/// has none of its own.
[[nodiscard]] inline std::size_t chunk_of(std::vector<int> const& stages, int stage) {
  for (std::size_t i = 0; i < stages.size(); ++i)
    if (stages[i] == stage) return i;
  return 0;
}

/// Draws a rank's blocks by colour, then its messages, then the numbers.
inline void draw_lane(std::string& out, SvgLayout const& layout,
                      std::vector<schedule::Span> const& row, double origin_s) {
  std::vector<int> const stages = stages_of(row);
  std::map<SvgKey, std::vector<SvgMark>> groups;
  for_each_block(row, [&](Block const& block) {
    SvgKey const key{style_index(block.action.kind), chunk_of(stages, block.action.stage),
                     block.half};
    groups[key].push_back(layout.mark(block.start_s - origin_s, block.end_s - origin_s,
                                      SvgLayout::label(block.action)));
  });
  for (auto const& [key, marks] : groups)
    draw_strokes(out, key.name(), layout.offset(key.half), marks);
  draw_messages(out, layout, [&](std::size_t style) {
    std::vector<SvgMark> marks;
    for (schedule::Span const& span : row)
      if (style_index(span.action.kind) == style)
        marks.push_back(layout.mark(span.start_s - origin_s, span.end_s - origin_s, {}));
    return marks;
  });
  for (auto const& [key, marks] : groups)
    if (layout.numbered[key.style]) draw_numbers(out, layout, key, marks);
}

/// Draws a rank whose blocks are narrower than a pixel: their shares of the time, and the times at
/// which messages are in transit.
/// @param shares  of action_styles.size() * layout.chunks kinds
inline void draw_shared_lane(std::string& out, SvgLayout const& layout,
                             std::vector<schedule::Span> const& row, double origin_s,
                             SvgShares& shares) {
  std::vector<int> const stages = stages_of(row);
  auto const place = [&](double at_s) { return (at_s - origin_s) * layout.per_second; };
  shares.clear();
  for_each_block(row, [&](Block const& block) {
    shares.add(
        style_index(block.action.kind) * layout.chunks + chunk_of(stages, block.action.stage),
        place(block.start_s), place(block.end_s), block.half == Half::none ? 1 : 0.5);
  });
  shares.for_each_area(10 * layout.lane, [&](std::size_t kind, std::string const& outline) {
    out += text("<path class=\"q ", SvgKey{kind / layout.chunks, kind % layout.chunks}.name(),
                "\" d=\"", outline, "\"/>");
  });
  draw_messages(out, layout, [&](std::size_t style) {
    std::vector<bool> busy(static_cast<std::size_t>(layout.lane_width()));  // [pixels]
    double const last = layout.lane_width() - 1;
    for (schedule::Span const& span : row) {
      if (style_index(span.action.kind) != style) continue;
      auto const pixel = [&](double at_s) {
        return busy.begin() + static_cast<std::ptrdiff_t>(std::clamp(place(at_s) / 10, 0.0, last));
      };
      std::fill(pixel(span.start_s), pixel(span.end_s) + 1, true);
    }
    std::vector<SvgMark> marks;  // one for each run of busy pixels
    for (long long from = 0; bool const here : busy) {
      bool const goes_on = !marks.empty() && marks.back().from + marks.back().width == from;
      if (here && goes_on) marks.back().width += 10;
      if (here && !goes_on) marks.push_back({from, 10, {}});
      from += 10;
    }
    return marks;
  });
}

}  // namespace stagger::report::detail
