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

/// Repeats the pattern for every microbatch and closes the gaps. With split backwards a weight
/// gradient runs where its rank would idle for a unit, or where one more forward would exceed
/// `most_chunks`.
[[nodiscard]] constexpr Table repeat(Shape shape, BuildingBlock const& block, bool whole,
                                     int most_chunks) {
  auto const P = static_cast<std::size_t>(shape.ranks);
  auto const M = static_cast<std::size_t>(shape.microbatches);
  std::vector<int> made(
      4 * P * M,
      -1);  // end of pass p of microbatch m on rank r; below -1: rank -2 - v waits for it
  auto const value = [&](std::size_t pass, std::size_t rank, std::size_t m) -> int& {
    return made[(pass * P + rank) * M + m];
  };

  struct Step {
    int at;
    std::size_t pass, m;
  };
  std::vector<std::vector<Step>> rows(P, std::vector<Step>{});
  for (std::size_t r = 0; r < P; ++r) {
    std::array<std::size_t, 4> next{};
    while (rows[r].size() < 4 * M) {
      Step best{-1, 0, 0};
      for (std::size_t pass = 0; pass < 4; ++pass) {
        if (next[pass] == M) continue;
        int const at = block.start[r][pass] + BuildingBlock::period * static_cast<int>(next[pass]);
        if (best.at < 0 || at < best.at) best = {at, pass, next[pass]};
      }
      ++next[best.pass];
      rows[r].push_back(best);
    }
  }

  std::vector<std::vector<Action>> out(P, std::vector<Action>{});
  std::vector<std::size_t> cursor(P, 0), weights(P, 0);
  std::vector<std::vector<Action>> gradients(P, std::vector<Action>{});
  std::vector<int> free(P, 0), live(P, 0);
  std::vector<std::size_t> runnable;
  for (std::size_t r = P; r-- > 0;) runnable.push_back(r);
  while (!runnable.empty()) {
    std::size_t const r = runnable.back();
    runnable.pop_back();
    auto const weight = [&] {
      Action a = gradients[r][weights[r]++];
      a.kind = Kind::backward_weight;
      out[r].push_back(a);
      ++free[r];
      --live[r];
    };
    for (; cursor[r] < rows[r].size(); ++cursor[r]) {
      auto const [at, pass, m] = rows[r][cursor[r]];
      bool const forward = pass == BuildingBlock::forward_down || pass == BuildingBlock::forward_up;
      bool const down = pass == BuildingBlock::forward_down || pass == BuildingBlock::backward_down;
      int ready = 0;
      bool const turns = down ? r == 0 : r + 1 == P;  // the pass begins on this rank
      if (!(pass == BuildingBlock::forward_down && turns)) {
        int& from = turns ? value(pass - 1, r, m) : value(pass, down ? r - 1 : r + 1, m);
        if (from < 0) {
          from = -2 - static_cast<int>(r);
          break;
        }
        ready = from;
      }
      while (weights[r] < gradients[r].size() &&
             (free[r] < ready || (forward && live[r] >= most_chunks)))
        weight();
      int const begin = std::max(ready, free[r]);
      int const stage =
          static_cast<int>(pass == BuildingBlock::forward_down || pass == BuildingBlock::backward_up
                               ? r
                               : 2 * P - 1 - r);
      Action const a{.kind = forward ? Kind::forward
                             : whole ? Kind::backward
                                     : Kind::backward_input,
                     .stage = stage,
                     .microbatch = static_cast<int>(m)};
      out[r].push_back(a);
      free[r] = begin + (whole && !forward ? 2 : 1);
      if (forward) ++live[r];
      if (!forward && whole) --live[r];
      if (!forward && !whole) gradients[r].push_back(a);
      int& mine = value(pass, r, m);
      if (mine < -1) runnable.push_back(static_cast<std::size_t>(-2 - mine));
      mine = free[r];
    }
  }
  Table table{.stages = shape.stages(), .microbatches = shape.microbatches};
  for (std::size_t r = 0; r < P; ++r) {
    table.begin_row();
    for (Action const& a : out[r]) table.add(a);
    for (; weights[r] < gradients[r].size(); ++weights[r]) {
      Action a = gradients[r][weights[r]];
      a.kind = Kind::backward_weight;
      table.add(a);
    }
  }
  return table;
}

}  // namespace stagger::schedule::detail
