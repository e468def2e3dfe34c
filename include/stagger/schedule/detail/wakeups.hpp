// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The event queue of the list schedulers: the times at which ranks may be able to run
///         something.

#include <algorithm>
#include <cstddef>
#include <limits>
#include <vector>

#include <stagger/core/requirements.hpp>

namespace stagger::schedule::detail {

/// Ranks by the time at which they become free or an input arrives: the earliest first, of several
/// at the same time the lowest rank.
class Wakeups {
 public:
  struct Wakeup {
    double at_s;
    int rank;
  };

  constexpr explicit Wakeups(int ranks) {
    heap_.reserve(4 * static_cast<std::size_t>(ranks));
    for (int r = 0; r < ranks; ++r) push(0, r);
  }
  [[nodiscard]] constexpr bool empty() const noexcept { return heap_.empty(); }
  /// The time of the first one; infinite: there is none.
  [[nodiscard]] constexpr double next_s() const noexcept {
    return heap_.empty() ? std::numeric_limits<double>::infinity() : heap_.front().at_s;
  }
  [[gnu::always_inline]] constexpr void push(double at_s, int rank) {
    heap_.push_back({at_s, rank});
    std::push_heap(heap_.begin(), heap_.end(), Later{});
  }
  [[nodiscard]] [[gnu::always_inline]] constexpr Wakeup pop() {
    std::pop_heap(heap_.begin(), heap_.end(), Later{});
    Wakeup const first = heap_.back();
    heap_.pop_back();
    return first;
  }

 private:
  struct Later {  // a type, which compilers inline where they would call a function
    constexpr bool operator()(Wakeup const& a, Wakeup const& b) const noexcept {
      return a.at_s > b.at_s || (a.at_s == b.at_s && a.rank > b.rank);
    }
  };

  std::vector<Wakeup> heap_{};
};

}  // namespace stagger::schedule::detail
