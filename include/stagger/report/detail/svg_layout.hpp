// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Sizes and positions in the timeline picture, computed before anything is drawn.

#include <algorithm>
#include <array>
#include <cmath>
#include <compare>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <stagger/core/error.hpp>
#include <stagger/report/detail/action_style.hpp>
#include <stagger/report/detail/blocks.hpp>
#include <stagger/report/svg_options.hpp>
#include <stagger/schedule/timeline.hpp>

namespace stagger::report::detail {

/// The strokes that share a colour and a height: one style, one chunk of the rank, one half of its
/// lane.
struct SvgKey {
  std::size_t style = 0;  ///< in `action_styles`
  std::size_t chunk = 0;
  Half half = Half::none;
  friend constexpr auto operator<=>(SvgKey const&, SvgKey const&) = default;

  /// Its classes: "b1 h".
  [[nodiscard]] std::string name() const {
    return text(std::string_view(&action_styles[style].letter, 1), chunk,
                half == Half::none ? "" : " h");
  }
};

/// A stroke in a lane. Lanes are measured in tenths of a pixel.
struct SvgMark {
  long long from = 0;   ///< from the left end of the lane
  long long width = 1;  ///< what is painted; the rest up to the next block is a gap
  std::string label{};
};

/// Where time is on the page, how high a lane is, which kinds occur, and in which of them numbers
/// fit.
struct SvgLayout {
  static constexpr int right = 20;  ///< margin, pixels

  SvgOptions options;
  std::vector<Extent> extents{};  ///< [panels]
  double length_s = 0;            ///< of the longest panel
  std::size_t chunks = 1;         ///< most stages on one rank
  int lane = 26;                  ///< height of a lane, pixels
  int left = 70;                  ///< where time 0 is, pixels
  double per_second = 0;          ///< tenths of a pixel in a second
  double font = 11;               ///< of the numbers, pixels
  bool pairs = false;             ///< some actions overlap
  bool shared = false;            ///< some panel shows shares of the time
  std::vector<int> column{};      ///< [panels] pixels of a column of shares; 0: blocks are drawn
  std::array<bool, action_styles.size()> present{};   ///< which kinds occur
  std::array<bool, action_styles.size()> numbered{};  ///< which kinds have numbers

  SvgLayout(std::span<SvgPanel const> panels, SvgOptions const& chosen) : options(chosen) {
    if (options.width < 200)
      raise(Errc::bad_configuration, "an SVG picture cannot be ", options.width,
            " pixels wide; give a width of 200 or more");
    std::size_t ranks = 1;
    for (SvgPanel const& panel : panels) {
      if (panel.timeline == nullptr)
        raise(Errc::bad_configuration,
              "a panel of an SVG picture has no timeline; point it at one");
      require_times(*panel.timeline);
      ranks = std::max(ranks, panel.timeline->row_begin.size());
      extents.push_back(extent(panel.timeline->spans));
      length_s = std::max(length_s, extents.back().length_s());
      for (int r = 0; r < panel.timeline->ranks(); ++r)
        chunks = std::max(chunks, stages_of(panel.timeline->row(r)).size());
    }
    lane = ranks <= 8 ? 26 : ranks <= 16 ? 20 : ranks <= 32 ? 14 : ranks <= 128 ? 8 : 3;
    left = 26 + 7 * static_cast<int>(std::to_string(ranks - 1).size() + 5);
    per_second = length_s > 0 ? 10.0 * lane_width() / length_s : 0;
    FontSizes fitting;
    for (SvgPanel const& panel : panels) survey(*panel.timeline, fitting);
    choose_font(fitting);
  }

  /// Length of the longest lane, pixels.
  [[nodiscard]] int lane_width() const { return options.width - left - right; }
  /// Between two lanes, pixels.
  [[nodiscard]] int lane_gap() const { return lane >= 20 ? 4 : lane >= 14 ? 3 : lane >= 8 ? 2 : 1; }
  /// Height of a block's stroke around the middle of the lane, tenths of a pixel.
  [[nodiscard]] int offset(Half half) const {
    return half == Half::none ? 0 : half == Half::first ? -lane * 5 / 2 - 2 : lane * 5 / 2 + 2;
  }

  [[nodiscard]] SvgMark mark(double start_s, double end_s, std::string label) const {
    long long const from = std::llround(start_s * per_second);
    long long const width = std::llround(end_s * per_second) - from;
    long long const gap = width >= 40 ? 10 : width >= 8 ? width / 4 : 0;
    return {from, std::max(width - gap, 1LL), std::move(label)};
  }

  [[nodiscard]] static std::string label(schedule::Action const& action) {
    return action.slice == 0 ? std::to_string(action.microbatch)
                             : text(action.microbatch, ".", action.slice);
  }

 private:
  /// By kind: the largest font with which each block's number fits.
  using FontSizes = std::array<std::vector<double>, action_styles.size()>;

  /// Notes which kinds occur, whether their blocks are wide enough to be drawn, and how much room
  /// their numbers have.
  void survey(schedule::Timeline const& timeline, FontSizes& fitting) {
    constexpr std::size_t fewest = 10000;  // fewer blocks are drawn, however narrow
    double time_s = 0;
    std::size_t count = 0;
    for (schedule::Span const& span : timeline.spans) {
      bool const message = schedule::travels(span.action.kind);
      if (!message || options.messages) present[style_index(span.action.kind)] = true;
      pairs = pairs || span.action.overlaps_next;
      if (message) continue;
      time_s += span.end_s - span.start_s;
      ++count;
    }
    double const width = count == 0 ? 1 : 0.1 * per_second * time_s / static_cast<double>(count);
    bool const narrow = width < 1 && count > fewest && per_second > 0;
    // A column must hold several blocks: the share of a few would depend on where columns begin.
    column.push_back(narrow ? static_cast<int>(std::ceil(8 * width)) : 0);
    shared = shared || narrow;
    if (narrow) return;
    for (int r = 0; r < timeline.ranks(); ++r)
      for_each_block(timeline.row(r), [&](Block const& block) {
        if (!schedule::is_compute(block.action.kind)) return;
        SvgMark const place = mark(block.start_s, block.end_s, label(block.action));
        fitting[style_index(block.action.kind)].push_back(
            (0.1 * static_cast<double>(place.width) - 1.5) /
            (0.6 * static_cast<double>(place.label.size())));
      });
  }

  /// Numbers appear on the kinds most of whose blocks have room for them; all in one size, the
  /// largest that these allow.
  void choose_font(FontSizes& fitting) {
    constexpr double smallest = 7;
    double const largest = std::min(11, pairs ? lane / 2 - 3 : lane - 6);
    font = largest;
    for (std::size_t kind = 0; kind < fitting.size(); ++kind) {
      std::vector<double>& of_kind = fitting[kind];
      if (of_kind.empty()) continue;
      auto const late = of_kind.begin() + static_cast<std::ptrdiff_t>(of_kind.size() / 20);
      std::nth_element(of_kind.begin(), late, of_kind.end());  // 19 of 20 have this much or more
      numbered[kind] = options.numbers && std::min(*late, largest) >= smallest;
      if (numbered[kind]) font = std::min(font, *late);
    }
    font = std::floor(font * 2) / 2;
  }
};

}  // namespace stagger::report::detail
