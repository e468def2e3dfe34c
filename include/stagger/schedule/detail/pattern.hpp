// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The pattern of one microbatch on a V, made to be repeated every six units of time.
/// @source Qi et al., "Pipeline Parallelism with Controllable Memory", arXiv 2405.15362, section 3:
///         the lifespan of the pattern sets the memory. Laid out here by modulo scheduling.

#include <stagger/core/requirements.hpp>

#include <array>
#include <cstddef>
#include <utility>
#include <vector>

namespace stagger::schedule::detail {

/// The pattern of one microbatch: when each rank runs its four passes.
struct Pattern {
  enum Pass : std::size_t {
    forward_down,
    forward_up,
    backward_down,
    backward_up
  };  // F0, F1, then chunk 1's, chunk 0's
  static constexpr int period =
      6;  ///< work of a rank on a microbatch: 2F + 2I + 2W, or 2F + 2B at B = 2

  std::vector<std::array<int, 4>> start{};  ///< [ranks][pass]

  explicit constexpr Pattern(std::vector<std::array<int, 4>> starts) : start(std::move(starts)) {}

  /// @param wait   [pass] units that a microbatch rests before each step of the pass
  /// @param whole  a backward takes two units (B), else one (I)
  constexpr Pattern(int ranks, std::array<int, 4> wait, bool whole) {
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

}  // namespace stagger::schedule::detail
