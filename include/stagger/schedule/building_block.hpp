// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Schedules on a V made by repeating one microbatch's pattern every six units of time.
/// @source Qi et al., "Pipeline Parallelism with Controllable Memory", arXiv 2405.15362, section 3:
/// the lifespan of the
///         pattern sets the memory. The pattern is laid out here by modulo scheduling; weight
///         gradients fill gaps.

#include <algorithm>
#include <array>
#include <cstddef>
#include <vector>

#include <stagger/core/shape.hpp>
#include <stagger/schedule/table.hpp>

namespace stagger::schedule::detail {

/// The pattern of one microbatch: when each rank runs its four passes.
struct BuildingBlock {
  enum Pass : std::size_t {
    forward_down,
    forward_up,
    backward_down,
    backward_up
  };  // F0, F1, then chunk 1's, chunk 0's
  static constexpr int period =
      6;  ///< work of a rank on a microbatch: 2F + 2I + 2W, or 2F + 2B at B = 2

  std::vector<std::array<int, 4>> start{};  ///< [ranks][pass]

  /// @param wait   [pass] units that a microbatch rests before each step of the pass
  /// @param whole  a backward takes two units (B), else one (I)
  constexpr BuildingBlock(int ranks, std::array<int, 4> wait, bool whole) {
    start.assign(static_cast<std::size_t>(ranks), std::array<int, 4>{});
    std::vector<unsigned> taken(static_cast<std::size_t>(ranks), 0U);  // bit per unit of the period
    int time = 0;
    for (std::size_t pass = 0; pass < 4; ++pass) {
      int const length = whole && pass >= backward_down ? 2 : 1;
      for (int i = 0; i < ranks; ++i) {
        bool const down = pass == forward_down || pass == backward_down;
        auto const rank = static_cast<std::size_t>(down ? i : ranks - 1 - i);
        if (pass > 0 || i > 0) time += wait[pass];
        unsigned slots = units(time, length);
        int const backwards_left = pass >= backward_down ? static_cast<int>(backward_up - pass) : 2;
        while ((taken[rank] & slots) != 0 ||
               (whole && !holds_pairs(taken[rank] | slots, backwards_left))) {
          slots = units(++time, length);
        }
        taken[rank] |= slots;
        start[rank][pass] = time;
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

  /// Can so many backwards of two units still be placed?
  static constexpr bool holds_pairs(unsigned taken, int count) {
    if (count == 0) return true;
    for (int t = 0; t < period; ++t) {
      unsigned const pair = units(t, 2);
      if ((taken & pair) == 0 && holds_pairs(taken | pair, count - 1)) return true;
    }
    return false;
  }
};

/// Repeats the pattern for every microbatch and closes the gaps, unit by unit of time. A rank runs
/// what is next in its order. Where that is not ready, a later gradient on the way down goes first
/// when no forward is left, and, with `early_forwards`, a later forward on the way down until a
/// microbatch has passed for the last time. With split backwards a weight gradient runs where its
/// rank would idle for a unit, or where one more forward would exceed `most_chunks`.
class Repetition {
 public:
  constexpr Repetition(Shape shape, BuildingBlock const& block, bool whole, int most_chunks,
                       bool early_forwards)
      : P_(static_cast<std::size_t>(shape.ranks)),
        M_(static_cast<std::size_t>(shape.microbatches)),
        whole_(whole),
        most_(most_chunks),
        early_forwards_(early_forwards),
        ranks_(P_, Rank{}),
        made_(4 * P_ * M_, -1) {
    for (std::size_t r = 0; r < P_; ++r) order(ranks_[r], block.start[r]);
  }

  [[nodiscard]] constexpr Table table() {
    std::size_t left = 4 * P_ * M_;
    for (int now = 0; left > 0; ++now) {
      for (std::size_t r = 0; r < P_; ++r) {
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
    Table out{.stages = static_cast<int>(2 * P_), .microbatches = static_cast<int>(M_)};
    out.actions.reserve((whole_ ? 4 : 6) * P_ * M_);
    for (Rank& rank : ranks_) {
      while (rank.weighed < rank.gradients.size()) weigh(rank);
      out.begin_row();
      for (Action const& a : rank.row) out.add(a);
    }
    return out;
  }

 private:
  struct Step {
    int at = 0;  // in the repeated pattern
    std::size_t pass = 0, m = 0;
    bool done = false;
  };
  struct Rank {
    std::vector<Step> steps{};
    std::size_t first = 0;  // of those not done
    std::size_t forwards = 0;
    bool returned = false;  // a microbatch has passed for the last time
    int free = 0, live = 0;
    std::vector<Action> row{}, gradients{};
    std::size_t weighed = 0;
  };

  constexpr void order(Rank& rank, std::array<int, 4> const& start) const {
    std::array<std::size_t, 4> next{};
    rank.steps.reserve(4 * M_);
    while (rank.steps.size() < 4 * M_) {
      Step best{-1, 0, 0, false};
      for (std::size_t pass = 0; pass < 4; ++pass) {
        if (next[pass] == M_) continue;
        int const at = start[pass] + BuildingBlock::period * static_cast<int>(next[pass]);
        if (best.at < 0 || at < best.at) best = {at, pass, next[pass], false};
      }
      ++next[best.pass];
      rank.steps.push_back(best);
    }
  }

  [[nodiscard]] static constexpr bool is_forward(std::size_t pass) noexcept {
    return pass == BuildingBlock::forward_down || pass == BuildingBlock::forward_up;
  }
  [[nodiscard]] constexpr int& made(std::size_t pass, std::size_t r, std::size_t m) {
    return made_[(pass * P_ + r) * M_ + m];
  }

  [[nodiscard]] constexpr bool ready(std::size_t r, Step const& s, int now) {
    bool const down =
        s.pass == BuildingBlock::forward_down || s.pass == BuildingBlock::backward_down;
    bool const turns = down ? r == 0 : r + 1 == P_;  // the pass begins on this rank
    if (turns && s.pass == BuildingBlock::forward_down) return true;
    int const end = turns ? made(s.pass - 1, r, s.m) : made(s.pass, down ? r - 1 : r + 1, s.m);
    return end >= 0 && end <= now;
  }

  /// The step to run now; the number of steps where there is none, or where a weight gradient has
  /// to make room.
  [[nodiscard]] constexpr std::size_t choose(std::size_t r, int now) {
    Rank& rank = ranks_[r];
    std::size_t const none = rank.steps.size();
    while (rank.first < none && rank.steps[rank.first].done) ++rank.first;
    if (rank.first == none) return none;
    Step const& next = rank.steps[rank.first];
    if (ready(r, next, now))
      return is_forward(next.pass) && rank.live >= most_ && !whole_ ? none : rank.first;
    bool const draining = rank.forwards == 2 * M_;
    if (!draining && (rank.returned || !early_forwards_)) return none;
    std::size_t const pass = draining ? BuildingBlock::backward_down : BuildingBlock::forward_down;
    int live = rank.live - static_cast<int>(rank.gradients.size() - rank.weighed);
    for (std::size_t n = rank.first; n < none; ++n) {
      Step const& s = rank.steps[n];
      if (s.done) continue;
      if (!draining && live >= most_) break;  // what stands before it would find no room
      if (s.pass == pass) {
        if (ready(r, s, now) && (draining || rank.live < most_)) return n;
        break;  // a pass keeps the order of its microbatches
      }
      live += is_forward(s.pass) ? 1 : -1;
    }
    return none;
  }

  constexpr void run(std::size_t r, std::size_t n, int now) {
    Rank& rank = ranks_[r];
    Step& s = rank.steps[n];
    s.done = true;
    bool const forward = is_forward(s.pass);
    bool const near = s.pass == BuildingBlock::forward_down || s.pass == BuildingBlock::backward_up;
    Action const a{.kind = forward  ? Kind::forward
                           : whole_ ? Kind::backward
                                    : Kind::backward_input,
                   .stage = static_cast<int>(near ? r : 2 * P_ - 1 - r),
                   .microbatch = static_cast<int>(s.m)};
    rank.row.push_back(a);
    rank.free = now + (whole_ && !forward ? 2 : 1);
    made(s.pass, r, s.m) = rank.free;
    rank.returned = rank.returned || s.pass == BuildingBlock::backward_up;
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

  std::size_t P_, M_;
  bool whole_;
  int most_;
  bool early_forwards_;
  std::vector<Rank> ranks_;
  std::vector<int> made_;  // [4 * P * M] end of pass p of microbatch m on rank r; -1: not run
};

}  // namespace stagger::schedule::detail
