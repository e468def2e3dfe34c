// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Shares of the time, drawn for lanes whose blocks are too narrow.

#include <stagger/core/requirements.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

namespace stagger::report::detail {

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

  /// Empties the lane.
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

  /// How much a column may differ from those before it without ending their area: blocks that a
  /// column begins or ends in.
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
      std::string const width = std::to_string(edge(to) - edge(from));
      std::string& out = outlines[k];
      (out += "M") += std::to_string(edge(from));
      (out += " ") += std::to_string(top);
      (out += "h") += width;
      (out += "v") += std::to_string(bottom - top);
      (out += "h-") += width;
      out += "z";
      bottom = top;
    }
  }

  std::size_t kinds_;
  long long width_;
  long long column_;
  std::size_t columns_;
  std::vector<float> shares_;  // [columns][kinds]
};

}  // namespace stagger::report::detail
