// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Schedules on a V made by repeating one microbatch's pattern every six units of time, and
///         moving every pass as early as its inputs, its rank and the pattern's own memory allow.
/// @source Qi et al., "Pipeline Parallelism with Controllable Memory", arXiv 2405.15362, sections 3
///         and 4: the lifespan of the pattern sets the memory; repeat, squeeze, reorder without a
///         higher peak. The pattern is laid out here by modulo scheduling.

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include <stagger/core/grid.hpp>
#include <stagger/core/shape.hpp>
#include <stagger/schedule/table.hpp>

namespace stagger::schedule::detail {

/// The pattern of one microbatch on a V: when each rank runs its four passes.
struct Pattern {
  /// F of chunk 0 and of chunk 1, then the backwards of chunk 1 and of chunk 0. What else a rank
  /// does in a unit of time: a weight gradient, the second half of a whole backward, nothing.
  enum Pass : unsigned char {
    forward_down,
    forward_up,
    backward_down,
    backward_up,
    weight,
    second,
    none
  };
  /// Work of a rank on a microbatch: 2F + 2I + 2W, or 2F + 2B at B = 2.
  static constexpr int period = 6;

  Grid<int> start;  ///< [ranks][pass]

  [[nodiscard]] static constexpr bool is_forward(int pass) noexcept { return pass <= forward_up; }
  [[nodiscard]] static constexpr bool is_backward(int pass) noexcept {
    return pass == backward_down || pass == backward_up;
  }
  /// A pass on a rank.
  struct Place {
    int pass, rank;
  };
  /// Where the input of a pass on a rank is made. @return pass -1: nowhere
  [[nodiscard]] static constexpr Place input(int pass, int rank, int ranks) noexcept {
    int const from = rank + (pass % 2 == 0 ? -1 : 1);  // even passes go down, odd ones up
    return from < 0 || from == ranks ? Place{pass - 1, rank} : Place{pass, from};
  }

  explicit constexpr Pattern(Grid<int> starts) : start(std::move(starts)) {}

  /// Places each pass at the earliest unit that is still free on its rank.
  /// @param whole  a backward takes two units (B), else one (I)
  constexpr Pattern(int ranks, bool whole) : start(ranks, 4, 0) {
    Grid<unsigned> taken(ranks);  // bit per unit of the period
    int time = 0;
    for (int pass = 0; pass < 4; ++pass) {
      int const length = whole && pass >= backward_down ? 2 : 1;
      for (int i = 0; i < ranks; ++i) {
        int const rank = pass % 2 == 0 ? i : ranks - 1 - i;
        unsigned slots = units(time, length);
        int const backwards_left = pass >= backward_down ? backward_up - pass : 2;
        while ((taken[rank] & slots) != 0 ||
               (whole && !holds_pairs(taken[rank] | slots, backwards_left))) {
          slots = units(++time, length);
        }
        taken[rank] |= slots;
        start(rank, pass) = time;
        time += length;
      }
    }
  }

 private:
  static constexpr unsigned units(int time, int length) {
    unsigned bits = 1U << (time % period);
    if (length == 2) bits |= 1U << ((time + 1) % period);
    return bits;
  }

  /// Whether this many backwards of two units can still be placed.
  static constexpr bool holds_pairs(unsigned taken, int count) {
    if (count == 0) return true;
    for (int t = 0; t < period; ++t) {
      unsigned const pair = units(t, 2);
      if ((taken & pair) == 0 && holds_pairs(taken | pair, count - 1)) return true;
    }
    return false;
  }
};

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
        if (what == Pattern::weight)
          move_weight(lines[r], t);
        else if (what != Pattern::none && what != Pattern::second)
          move_pass(r, lines[r], what, t, most);
      }
    }
  }

  /// The unit of time in which a pass begins.
  [[nodiscard]] constexpr int at(int pass, int r, int m) const { return at_(pass * P_ + r, m); }

 private:
  using Unit = Pattern::Pass;

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
    line.units = Grid<Unit>(end, Pattern::none);
    line.live = Grid<int>(end);
    line.next = Grid<int>(4);
    for (int pass = 0; pass < 4; ++pass) {
      for (int m = 0; m < M_; ++m) {
        int const t = pattern.start(r, pass) + Pattern::period * m;
        line.units[t] = static_cast<Unit>(pass);
        if (whole_ && pass >= Pattern::backward_down) line.units[t + 1] = Pattern::second;
      }
    }
    int live = 0;
    int most = 0;
    int to_weigh = 0;
    for (int t = 0; t < end; ++t) {
      Unit& what = line.units[t];
      if (what == Pattern::none && to_weigh > 0) {
        what = Pattern::weight;
        --to_weigh;
      }
      if (what == Pattern::weight || what == Pattern::second) --live;
      if (Pattern::is_forward(what)) ++live;
      if (!whole_ && Pattern::is_backward(what)) ++to_weigh;
      line.live[t] = live;
      most = std::max(most, live);
    }
    return most;
  }

  [[nodiscard]] constexpr int end_of(int pass, int r, int m) const {
    return at(pass, r, m) + (whole_ && pass >= Pattern::backward_down ? 2 : 1);
  }

  constexpr void move_weight(Line& line, int t) const {
    int to = std::max(line.gradients[line.weighed], line.last_weight) + 1;
    ++line.weighed;
    while (to < t && line.units[to] != Pattern::none) ++to;
    line.last_weight = to;
    if (to == t) return;
    line.units[to] = Pattern::weight;
    line.units[t] = Pattern::none;
    for (int u = to; u < t; ++u) --line.live[u];
  }

  constexpr void move_pass(int r, Line& line, Unit what, int t, int most) {
    int const pass = static_cast<int>(what);
    int const m = line.next[pass]++;
    bool const pair = whole_ && Pattern::is_backward(what);
    int to = m > 0 ? end_of(pass, r, m - 1) : 0;
    auto const input = Pattern::input(pass, r, P_);
    if (input.pass >= 0) to = std::max(to, end_of(input.pass, input.rank, m));
    if (Pattern::is_forward(what)) {
      int earliest = t;
      while (earliest > to && line.live[earliest - 1] < most) --earliest;
      to = earliest;
    }
    auto const free = [&](int u) { return line.units[u] == Pattern::none || (pair && u == t); };
    while (to < t && !(free(to) && (!pair || free(to + 1)))) ++to;
    at_(pass * P_ + r, m) = to;
    if (!whole_ && Pattern::is_backward(what)) line.gradients.push_back(to);
    if (to == t) return;
    line.units[t] = Pattern::none;
    if (pair) line.units[t + 1] = Pattern::none;
    line.units[to] = what;
    if (pair) line.units[to + 1] = Pattern::second;
    for (int u = to; Pattern::is_forward(what) && u < t; ++u) ++line.live[u];
    for (int u = to + 1; pair && u <= t; ++u) --line.live[u];
  }

  int P_, M_;
  bool whole_;
  Grid<int> at_;  // [4 * P][M]
};

/// Repeats the pattern for every microbatch, squeezes it, and plays the order so found, unit by
/// unit of time. With whole backwards a rank runs what is next in its order. With split ones a
/// later gradient on the way down goes first where that is not ready and no forward is left, and a
/// weight gradient runs where its rank would idle for a unit, or where one more forward would
/// exceed `most_chunks`.
class Repetition {
 public:
  constexpr Repetition(Shape shape, Pattern const& pattern, bool whole, int most_chunks)
      : P_(shape.ranks),
        M_(shape.microbatches),
        whole_(whole),
        most_(most_chunks),
        ranks_(P_),
        made_(4 * P_, M_, -1) {
    Squeezed const squeezed(shape, pattern, whole);
    for (int r = 0; r < P_; ++r) {
      auto& steps = ranks_[r].steps;
      for (int pass = 0; pass < 4; ++pass)
        for (int m = 0; m < M_; ++m) steps.push_back({squeezed.at(pass, r, m), pass, m});
      std::sort(steps.begin(), steps.end(),
                [](Step const& a, Step const& b) { return a.at < b.at; });
    }
  }

  [[nodiscard]] constexpr Table table() {
    int left = 4 * P_ * M_;
    for (int now = 0; left > 0; ++now) {
      for (int r = 0; r < P_; ++r) {
        Rank& rank = ranks_[r];
        if (rank.free > now) continue;
        std::size_t const n = choose(r, now);
        if (n < rank.steps.size()) {
          run(r, n, now);
          --left;
        } else if (rank.weighed < rank.gradients.size()) {
          weigh(rank);
          rank.free = now + 1;
        }
      }
    }
    Table out = Table{.stages = 2 * P_, .microbatches = M_}.like((whole_ ? 4 : 6) * P_ * M_);
    for (Rank& rank : ranks_) {
      while (rank.weighed < rank.gradients.size()) weigh(rank);
      out.add_row(rank.row);
    }
    return out;
  }

 private:
  struct Step {
    int at = 0;  // in the squeezed pattern
    int pass = 0, m = 0;
    bool done = false;
  };
  struct Rank {
    std::vector<Step> steps{};
    std::size_t first = 0;  // of those not done
    int forwards = 0, free = 0, live = 0;
    std::vector<Action> row{}, gradients{};
    std::size_t weighed = 0;
  };

  [[nodiscard]] constexpr int& made(int pass, int r, int m) { return made_(pass * P_ + r, m); }

  [[nodiscard]] constexpr bool ready(int r, Step const& s, int now) {
    auto const [pass, rank] = Pattern::input(s.pass, r, P_);
    if (pass < 0) return true;
    int const end = made(pass, rank, s.m);
    return end >= 0 && end <= now;
  }

  /// The step to run now; the number of steps if there is none, or if a weight gradient must
  /// release memory first.
  [[nodiscard]] constexpr std::size_t choose(int r, int now) {
    Rank& rank = ranks_[r];
    std::size_t const none = rank.steps.size();
    while (rank.first < none && rank.steps[rank.first].done) ++rank.first;
    if (rank.first == none) return none;
    Step const& next = rank.steps[rank.first];
    if (ready(r, next, now))
      return Pattern::is_forward(next.pass) && rank.live >= most_ && !whole_ ? none : rank.first;
    if (whole_ || rank.forwards < 2 * M_) return none;
    for (std::size_t n = rank.first; n < none; ++n) {
      Step const& s = rank.steps[n];
      if (s.done || s.pass != Pattern::backward_down) continue;
      return ready(r, s, now) ? n : none;  // a pass keeps the order of its microbatches
    }
    return none;
  }

  constexpr void run(int r, std::size_t n, int now) {
    Rank& rank = ranks_[r];
    Step& s = rank.steps[n];
    s.done = true;
    bool const forward = Pattern::is_forward(s.pass);
    bool const near = s.pass == Pattern::forward_down || s.pass == Pattern::backward_up;
    Action const a{.kind = forward  ? Kind::forward
                           : whole_ ? Kind::backward
                                    : Kind::backward_input,
                   .stage = near ? r : 2 * P_ - 1 - r,
                   .microbatch = s.m};
    rank.row.push_back(a);
    rank.free = now + (whole_ && !forward ? 2 : 1);
    made(s.pass, r, s.m) = rank.free;
    if (forward) {
      ++rank.forwards;
      ++rank.live;
    } else if (whole_) {
      --rank.live;
    } else {
      rank.gradients.push_back(a);
    }
  }

  static constexpr void weigh(Rank& rank) {
    Action a = rank.gradients[rank.weighed++];
    a.kind = Kind::backward_weight;
    rank.row.push_back(a);
    --rank.live;
  }

  int P_, M_;
  bool whole_;
  int most_;
  Grid<Rank> ranks_;
  Grid<int> made_;  // [4 * P][M] end of pass p of microbatch m on rank r; -1: not run
};

}  // namespace stagger::schedule::detail
