// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The lanes of the timeline picture: blocks, their numbers, messages.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <stagger/core/error.hpp>
#include <stagger/report/detail/blocks.hpp>
#include <stagger/report/detail/svg_shares.hpp>
#include <stagger/report/detail/svg_style.hpp>
#include <stagger/report/svg_options.hpp>
#include <stagger/schedule/timeline.hpp>

namespace stagger::report::detail {

/// Draws lanes. A block is a horizontal stroke as wide as its lane is high, in tenths of a pixel:
/// `h74m10 0`. Where thousands of blocks are narrower than a pixel, areas show their shares of the
/// time instead.
class SvgLanes {
 protected:
  explicit SvgLanes(SvgOptions const& options) : options_(options) {}

  static constexpr int right = 20;

  /// One colour and height of blocks in a lane.
  struct Key {
    schedule::Kind kind = schedule::Kind::forward;
    std::size_t chunk = 0;
    Half half = Half::none;
    friend constexpr auto operator<=>(Key const&, Key const&) = default;
  };
  struct Mark {
    long long from = 0;   ///< tenths of a pixel from the left end of the lane
    long long width = 1;  ///< what is painted; the rest up to the next block is a gap
    std::string label{};
  };

  [[nodiscard]] Mark mark(double start_s, double end_s, std::string label) const {
    long long const from = std::llround(start_s * per_second_);
    long long const width = std::llround(end_s * per_second_) - from;
    long long const gap = width >= 40 ? 10 : width >= 8 ? width / 4 : 0;
    return {from, std::max(width - gap, 1LL), std::move(label)};
  }

  [[nodiscard]] static std::string label(schedule::Action const& action) {
    std::string text = std::to_string(action.microbatch);
    if (action.slice != 0) text += stagger::text(".", action.slice);
    return text;
  }

  /// Pixels that a label needs, its margins included. Digits of the usual fonts are 0.56 to 0.64 em
  /// wide.
  [[nodiscard]] static double label_width(std::string const& label, double font) {
    return 0.6 * font * static_cast<double>(label.size()) + 1.5;
  }

  [[nodiscard]] static std::size_t index(schedule::Kind kind) {
    return static_cast<std::size_t>(kind);
  }

  /// Notes which kinds occur, whether their blocks are to be seen, and how much room their numbers
  /// have.
  void survey(schedule::Timeline const& timeline) {
    double time_s = 0;
    std::size_t count = 0;
    for (auto const& row : timeline.rows) {
      for (schedule::Span const& span : row) {
        bool const message = schedule::is_message(span.action.kind);
        if (!message || options_.messages)
          present_[index(message ? schedule::Kind::send_forward : span.action.kind)] = true;
        pairs_ = pairs_ || span.action.overlaps_next;
        if (message) continue;
        time_s += span.end_s - span.start_s;
        ++count;
      }
    }
    // Pixels. Columns of several blocks, since the share of fewer depends on where they are cut.
    double const width = count == 0 ? 1 : 0.1 * per_second_ * time_s / static_cast<double>(count);
    bool const shared = width < 1 && count > least_shared && per_second_ > 0;
    column_.push_back(shared ? static_cast<int>(std::ceil(8 * width)) : 0);
    if (shared) return;
    for (auto const& row : timeline.rows) {
      for_each_block(row, [&](Block const& block) {
        if (!schedule::is_compute(block.action.kind)) return;
        std::string text = label(block.action);
        std::size_t const length = text.size();
        Mark const place = mark(block.start_s, block.end_s, std::move(text));
        rooms_[index(block.action.kind)].push_back((0.1 * static_cast<double>(place.width) - 1.5) /
                                                   (0.6 * static_cast<double>(length)));
      });
    }
  }

  /// Numbers appear on the kinds most of whose blocks have room for them; all in one size, the
  /// largest that these allow.
  void choose_font() {
    double const largest = std::min(11, pairs_ ? lane_ / 2 - 3 : lane_ - 6);
    font_ = largest;
    for (std::size_t kind = 0; kind < rooms_.size(); ++kind) {
      std::vector<double>& rooms = rooms_[kind];
      if (rooms.empty()) continue;
      auto const late = rooms.begin() + static_cast<std::ptrdiff_t>(rooms.size() / 20);
      std::nth_element(rooms.begin(), late, rooms.end());  // all but one in twenty have this much
      numbered_[kind] = options_.numbers && std::min(*late, largest) >= smallest_font;
      if (numbered_[kind]) font_ = std::min(font_, *late);
    }
    font_ = std::floor(font_ * 2) / 2;
  }

  /// Where panel `p` shows shares of the time: what collects them.
  [[nodiscard]] std::optional<SvgShares> shares_of(std::size_t p) const {
    if (column_[p] == 0) return std::nullopt;
    return SvgShares(shared_kinds.size() * chunks_, 10 * (options_.width - left_ - right),
                     10 * column_[p]);
  }
  [[nodiscard]] bool any_shared() const {
    return std::any_of(column_.begin(), column_.end(), [](int column) { return column > 0; });
  }

  [[nodiscard]] static std::string name(Key const& key) {
    std::string text(1, kind_letter(key.kind));
    text += std::to_string(key.chunk);
    return key.half == Half::none ? text : text + " h";
  }

  /// The index of a stage's colours on its rank. A reduction of a stage that the row never computes
  /// has none of its own.
  [[nodiscard]] static std::size_t chunk_of(std::vector<int> const& stages, int stage) {
    auto const at = std::lower_bound(stages.begin(), stages.end(), stage);
    return at == stages.end() || *at != stage ? 0 : static_cast<std::size_t>(at - stages.begin());
  }

  /// A rank's blocks by colour, numbers, messages.
  void lane(std::string& out, std::vector<schedule::Span> const& row, double origin_s) {
    std::vector<int> const stages = stages_of(row);
    std::map<Key, std::vector<Mark>> groups;
    for_each_block(row, [&](Block const& block) {
      Key const key{block.action.kind, chunk_of(stages, block.action.stage), block.half};
      groups[key].push_back(
          mark(block.start_s - origin_s, block.end_s - origin_s, label(block.action)));
    });
    for (auto const& [key, marks] : groups) strokes(out, name(key), offset(key.half), marks);
    if (options_.messages) {
      std::vector<Mark> messages;
      for (schedule::Span const& span : row) {
        if (!schedule::is_message(span.action.kind)) continue;
        messages.push_back(mark(span.start_s - origin_s, span.end_s - origin_s, {}));
      }
      if (!messages.empty()) strokes(out, "m0", lane_ * 5 + message_offset(), messages);
    }
    for (auto const& [key, marks] : groups) {
      if (numbered_[index(key.kind)]) numbers(out, key, marks);
    }
  }

  /// A rank whose blocks are narrower than a pixel: their shares of the time, and when messages are
  /// on their way.
  void shared_lane(std::string& out, std::vector<schedule::Span> const& row, double origin_s,
                   SvgShares& shares) {
    std::vector<int> const stages = stages_of(row);
    shares.clear();
    for_each_block(row, [&](Block const& block) {
      std::size_t kind = 0;
      while (shared_kinds[kind] != block.action.kind) ++kind;
      shares.add(kind * chunks_ + chunk_of(stages, block.action.stage),
                 (block.start_s - origin_s) * per_second_, (block.end_s - origin_s) * per_second_,
                 block.half == Half::none ? 1 : 0.5);
    });
    shares.for_each_area(10 * lane_, [&](std::size_t kind, std::string const& outline) {
      out += "<path class=\"q " + name({shared_kinds[kind / chunks_], kind % chunks_, Half::none}) +
             "\" d=\"" + outline + "\"/>";
    });
    if (!options_.messages) return;
    std::vector<bool> busy;  // [pixels]
    for (schedule::Span const& span : row) {
      if (!schedule::is_message(span.action.kind)) continue;
      busy.resize(static_cast<std::size_t>(options_.width - left_ - right));
      double const last = static_cast<double>(busy.size()) - 1;
      auto const pixel = [&](double at_s) {
        return static_cast<std::size_t>(
            std::clamp((at_s - origin_s) * per_second_ / 10, 0.0, last));
      };
      for (std::size_t at = pixel(span.start_s); at <= pixel(span.end_s); ++at) busy[at] = true;
    }
    std::vector<Mark> messages;
    for (std::size_t at = 0; at < busy.size(); ++at) {
      if (!busy[at]) continue;
      auto const from = static_cast<long long>(at);
      while (at < busy.size() && busy[at]) ++at;
      messages.push_back({10 * from, 10 * (static_cast<long long>(at) - from), {}});
    }
    if (!messages.empty()) strokes(out, "m0", lane_ * 5 + message_offset(), messages);
  }

  [[nodiscard]] int lane_gap() const {
    return lane_ >= 20 ? 4 : lane_ >= 14 ? 3 : lane_ >= 8 ? 2 : 1;
  }
  [[nodiscard]] int message_offset() const { return lane_ >= 8 ? 16 : 5; }
  [[nodiscard]] int offset(Half half) const {
    return half == Half::none ? 0 : half == Half::first ? -lane_ * 5 / 2 - 2 : lane_ * 5 / 2 + 2;
  }

  static void strokes(std::string& out, std::string const& name, int y,
                      std::vector<Mark> const& marks) {
    out += "<path class=\"" + name + "\" d=\"";
    long long pen = 0;
    for (std::size_t i = 0; i < marks.size(); ++i) {
      if (i == 0) {
        out += text("M", marks[i].from, " ", y);
      } else {
        out += text("m", marks[i].from - pen, " 0");
      }
      out += text("h", marks[i].width);
      pen = marks[i].from + marks[i].width;
    }
    out += "\"/>";
  }

  void numbers(std::string& out, Key const& key, std::vector<Mark> const& marks) const {
    std::string spans;
    for (Mark const& one : marks) {
      if (label_width(one.label, font_) > 0.1 * static_cast<double>(one.width) + 0.05) continue;
      spans +=
          "<tspan x=\"" + std::to_string(one.from + one.width / 2) + "\">" + one.label + "</tspan>";
    }
    if (spans.empty()) return;
    auto const base =
        static_cast<int>(std::lround(3.6 * font_));  // half the height of a digit below the middle
    out += "<text class=\"n " + name({key.kind, key.chunk, Half::none}) + "\" y=\"" +
           std::to_string(offset(key.half) + base);
    out += "\">" + spans + "</text>";
  }

  static constexpr double smallest_font = 7;
  static constexpr std::size_t least_shared = 10000;  // fewer blocks are drawn, however narrow
  /// From the bottom of a lane.
  static constexpr std::array<schedule::Kind, 5> shared_kinds{
      schedule::Kind::forward, schedule::Kind::backward, schedule::Kind::backward_input,
      schedule::Kind::backward_weight, schedule::Kind::reduce_gradient};
  SvgOptions options_;
  double per_second_ = 0;   ///< tenths of a pixel in a second
  std::size_t chunks_ = 1;  ///< most stages on one rank
  int lane_ = 26;           ///< height of a lane, pixels
  int left_ = 70;           ///< where time 0 is, pixels
  double font_ = 11;        ///< of the numbers, pixels
  bool pairs_ = false;
  std::vector<int> column_{};       ///< [panels] pixels of a column of shares; 0: blocks are drawn
  std::array<bool, 9> present_{};   ///< [kinds]
  std::array<bool, 9> numbered_{};  ///< [kinds]
  std::array<std::vector<double>, 9>
      rooms_{};  ///< [kinds] largest font that each block has room for
};

}  // namespace stagger::report::detail
