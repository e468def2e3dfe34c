// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The compaction of a repeated pattern: every pass moves as early as its inputs, its rank
///         and the pattern's own memory allow.
/// @source Qi et al., "Pipeline Parallelism with Controllable Memory", arXiv 2405.15362, sections 3
///         and 4: repeat, squeeze, reorder without a higher peak.

#include <algorithm>
#include <cstddef>
#include <vector>

#include <stagger/core/grid.hpp>
#include <stagger/core/shape.hpp>
#include <stagger/schedule/detail/pattern.hpp>

namespace stagger::schedule::detail {

/// Goes once through the repeated pattern in order of time, on all ranks at once, and moves each
/// pass to the earliest free unit after its inputs. A forward goes no further back than the
/// pattern's peak of live chunks allows on every unit that it would be held longer.
class Squeezed {
 public:
  /// @param whole  a backward takes two units (B); else one (I), and each W a free one after it
  constexpr Squeezed(Shape shape, Pattern const& pattern, bool whole)
      : P_(shape.ranks), M_(shape.microbatches), whole_(whole), at_(4 * P_, M_, 0) {
    int const last = *std::max_element(pattern.start.begin(), pattern.start.end());
    int const end = last + Pattern::period * M_ + (whole ? 0 : 2 * M_);
    Grid<Line> lines(P_);
    int most = 0;
    for (int r = 0; r < P_; ++r) most = std::max(most, repeat(lines[r], pattern, r, end));
    for (int t = 0; t < end; ++t) {
      for (int r = 0; r < P_; ++r) {
        Unit const what = lines[r].units[t];
        if (what == Unit::weight)
          move_weight(lines[r], t);
        else if (what != Unit::none && what != Unit::second)
          move_pass(r, lines[r], what, t, most);
      }
    }
  }

  /// The unit of time in which a pass begins.
  [[nodiscard]] constexpr int at(int pass, int r, int m) const { return at_(pass * P_ + r, m); }

 private:
  enum class Unit : unsigned char {
    forward_down,
    forward_up,
    backward_down,
    backward_up,
    weight,
    second,
    none
  };

  struct Line {  // one rank
    Grid<Unit> units{};
    Grid<int> live{};              // [units] chunks, at its end
    Grid<int> next{};              // [pass] microbatches moved
    std::vector<int> gradients{};  // units of those moved
    std::size_t weighed = 0;
    int last_weight = 0;
  };

  /// @return the most chunks that live at once
  constexpr int repeat(Line& line, Pattern const& pattern, int r, int end) const {
    line.units = Grid<Unit>(end, Unit::none);
    line.live = Grid<int>(end);
    line.next = Grid<int>(4);
    for (int pass = 0; pass < 4; ++pass) {
      for (int m = 0; m < M_; ++m) {
        int const t = pattern.start(r, pass) + Pattern::period * m;
        line.units[t] = static_cast<Unit>(pass);
        if (whole_ && pass >= Pattern::backward_down) line.units[t + 1] = Unit::second;
      }
    }
    int live = 0;
    int most = 0;
    int to_weigh = 0;
    for (int t = 0; t < end; ++t) {
      Unit& what = line.units[t];
      if (what == Unit::none && to_weigh > 0) {
        what = Unit::weight;
        --to_weigh;
      }
      if (what == Unit::weight || what == Unit::second) --live;
      if (is_forward(what)) ++live;
      if (!whole_ && is_backward(what)) ++to_weigh;
      line.live[t] = live;
      most = std::max(most, live);
    }
    return most;
  }

  [[nodiscard]] static constexpr bool is_forward(Unit what) noexcept {
    return what <= Unit::forward_up;
  }
  [[nodiscard]] static constexpr bool is_backward(Unit what) noexcept {
    return what == Unit::backward_down || what == Unit::backward_up;
  }
  [[nodiscard]] constexpr int end_of(int pass, int r, int m) const {
    return at(pass, r, m) + (whole_ && pass >= Pattern::backward_down ? 2 : 1);
  }

  constexpr void move_weight(Line& line, int t) const {
    int to = std::max(line.gradients[line.weighed], line.last_weight) + 1;
    ++line.weighed;
    while (to < t && line.units[to] != Unit::none) ++to;
    line.last_weight = to;
    if (to == t) return;
    line.units[to] = Unit::weight;
    line.units[t] = Unit::none;
    for (int u = to; u < t; ++u) --line.live[u];
  }

  constexpr void move_pass(int r, Line& line, Unit what, int t, int most) {
    int const pass = static_cast<int>(what);
    int const m = line.next[pass]++;
    bool const pair = whole_ && is_backward(what);
    int to = m > 0 ? end_of(pass, r, m - 1) : 0;
    auto const input = Pattern::input(pass, r, P_);
    if (input.pass >= 0) to = std::max(to, end_of(input.pass, input.rank, m));
    if (is_forward(what)) {
      int earliest = t;
      while (earliest > to && line.live[earliest - 1] < most) --earliest;
      to = earliest;
    }
    auto const free = [&](int u) { return line.units[u] == Unit::none || (pair && u == t); };
    while (to < t && !(free(to) && (!pair || free(to + 1)))) ++to;
    at_(pass * P_ + r, m) = to;
    if (!whole_ && is_backward(what)) line.gradients.push_back(to);
    if (to == t) return;
    line.units[t] = Unit::none;
    if (pair) line.units[t + 1] = Unit::none;
    line.units[to] = what;
    if (pair) line.units[to + 1] = Unit::second;
    for (int u = to; is_forward(what) && u < t; ++u) ++line.live[u];
    for (int u = to + 1; pair && u <= t; ++u) --line.live[u];
  }

  int P_, M_;
  bool whole_;
  Grid<int> at_;  // [4 * P][M]
};

}  // namespace stagger::schedule::detail
