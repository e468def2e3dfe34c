// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The lanes of the timeline picture: blocks, their numbers, messages, and shares
///         of the time where blocks are too narrow.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <vector>

#include <stagger/core/error.hpp>
#include <stagger/report/detail/blocks.hpp>
#include <stagger/report/detail/svg_layout.hpp>
#include <stagger/schedule/timeline.hpp>

namespace stagger::report::detail {

/// Draws strokes of one class as one path, such as `h74m10 0`, in tenths of a pixel. The width of a
/// stroke is its block's height.
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

/// Draws messages, pushes and pulls as thin lines: pulls along the top of the lane, the others
/// along its bottom.
/// @param marks_of  gives the marks of an index in action_styles
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
                      std::span<schedule::Span const> row, double origin_s) {
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

/// The time of one lane, divided among the kinds of blocks in it. A lane is divided into columns;
/// as long as the shares stay the same, columns become one area for each kind, as high as its
/// share.
class SvgShares {
 public:
  /// @param kinds   that blocks may have, 0 <= kind < kinds
  /// @param width   of the lane, tenths of a pixel
  /// @param column  width of a column; the last one is what is left
  SvgShares(std::size_t kinds, long long width, long long column)
      : kinds_(kinds),
        width_(width),
        column_(column),
        columns_(static_cast<std::size_t>((width + column - 1) / column)),
        shares_(kinds * columns_) {}

  void clear() { std::fill(shares_.begin(), shares_.end(), 0.0F); }

  /// Adds a block. The halves of a pair weigh a half each.
  /// @param from, to  tenths of a pixel from the left end of the lane
  void add(std::size_t kind, double from, double to, double weight) {
    double at = std::max(from, 0.0);
    double const end = std::min(to, static_cast<double>(width_));
    while (at < end) {
      auto const column = static_cast<std::size_t>(static_cast<long long>(at) / column_);
      auto const right = static_cast<double>(edge(column + 1));
      double const wide = right - static_cast<double>(edge(column));
      double const next = std::min(right, end);
      shares_[column * kinds_ + kind] += static_cast<float>((next - at) / wide * weight);
      at = next;
    }
  }

  /// Calls `f(kind, outline)` for each kind in the lane, `outline` being path data of its areas.
  /// @param height  of the lane, tenths of a pixel; its middle is at 0
  template <class F> void for_each_area(int height, F&& f) const {
    std::vector<std::string> outlines(kinds_);
    std::vector<float> mean(kinds_);
    for (std::size_t from = 0; from < columns_;) {
      std::copy_n(&shares_[from * kinds_], kinds_, mean.begin());
      std::size_t to = from + 1;
      while (to < columns_ && alike(mean, to)) {
        auto const n = static_cast<float>(to - from);
        for (std::size_t k = 0; k < kinds_; ++k)
          mean[k] = (mean[k] * n + shares_[to * kinds_ + k]) / (n + 1);
        ++to;
      }
      areas(outlines, mean, from, to, height);
      from = to;
    }
    for (std::size_t k = 0; k < kinds_; ++k)
      if (!outlines[k].empty()) f(k, outlines[k]);
  }

 private:
  /// Left end of a column, tenths of a pixel.
  [[nodiscard]] long long edge(std::size_t column) const {
    return std::min(static_cast<long long>(column) * column_, width_);
  }

  /// How much the shares of a column may differ from those before it without ending their area.
  /// They differ slightly where a column begins or ends inside a block.
  static constexpr float tolerance = 0.125F;

  [[nodiscard]] bool alike(std::vector<float> const& mean, std::size_t column) const {
    for (std::size_t k = 0; k < kinds_; ++k)
      if (std::fabs(mean[k] - shares_[column * kinds_ + k]) > tolerance) return false;
    return true;
  }

  /// Stacks the shares from the bottom of the lane; what is left above them is idle.
  void areas(std::vector<std::string>& outlines, std::vector<float> const& mean, std::size_t from,
             std::size_t to, int height) const {
    float sum = 0;
    long bottom = height / 2;
    for (std::size_t k = 0; k < kinds_; ++k) {
      sum += mean[k];
      long const top = height / 2 - std::lround(std::min(sum, 1.0F) * static_cast<float>(height));
      if (top >= bottom) continue;
      long long const width = edge(to) - edge(from);
      outlines[k] +=
          text("M", edge(from), " ", top, "h", width, "v", bottom - top, "h-", width, "z");
      bottom = top;
    }
  }

  std::size_t kinds_;
  long long width_;
  long long column_;
  std::size_t columns_;
  std::vector<float> shares_;  // [columns][kinds]
};

/// Draws a rank whose blocks are narrower than a pixel: their shares of the time, and the times at
/// which messages are in transit.
/// @param shares  of action_styles.size() * layout.chunks kinds
inline void draw_shared_lane(std::string& out, SvgLayout const& layout,
                             std::span<schedule::Span const> row, double origin_s,
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
