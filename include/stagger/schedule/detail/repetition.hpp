// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Schedules on a V made by repeating one microbatch's pattern every six units of time.
/// @source Qi et al., "Pipeline Parallelism with Controllable Memory", arXiv 2405.15362, sections 3
///         and 4.

#include <algorithm>
#include <cstddef>
#include <vector>

#include <stagger/core/grid.hpp>
#include <stagger/core/shape.hpp>
#include <stagger/schedule/detail/pattern.hpp>
#include <stagger/schedule/detail/squeeze.hpp>
#include <stagger/schedule/table.hpp>

namespace stagger::schedule::detail {

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
