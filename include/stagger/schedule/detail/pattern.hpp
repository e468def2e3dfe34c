// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The pattern of one microbatch on a V, made to be repeated every six units of time.
/// @source Qi et al., "Pipeline Parallelism with Controllable Memory", arXiv 2405.15362, section 3:
///         the lifespan of the pattern sets the memory. Laid out here by modulo scheduling.

#include <utility>

#include <stagger/core/grid.hpp>

namespace stagger::schedule::detail {

/// The pattern of one microbatch: when each rank runs its four passes.
struct Pattern {
  /// F of chunk 0 and of chunk 1, then the backwards of chunk 1 and of chunk 0.
  enum Pass : unsigned char { forward_down, forward_up, backward_down, backward_up };
  /// Work of a rank on a microbatch: 2F + 2I + 2W, or 2F + 2B at B = 2.
  static constexpr int period = 6;

  Grid<int> start;  ///< [ranks][pass]

  [[nodiscard]] static constexpr bool is_forward(int pass) noexcept { return pass <= forward_up; }
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

}  // namespace stagger::schedule::detail
