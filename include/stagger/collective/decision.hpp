// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Something that one rank decides for all: measured once, broadcast, renewed at agreed
/// steps.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include <stagger/collective/communicator.hpp>
#include <stagger/core/error.hpp>
#include <stagger/core/text.hpp>

namespace stagger::collective {

/// Largest relative change between two lists of measured times: 0.2 where one took a fifth longer
/// or shorter. What appears out of nothing, and lists of different lengths, count as infinite.
[[nodiscard]] inline double largest_change(std::span<double const> before,
                                           std::span<double const> now) noexcept {
  constexpr double infinite = HUGE_VAL;
  if (before.size() != now.size()) return infinite;
  double largest = 0;
  for (std::size_t i = 0; i < before.size(); ++i) {
    if (before[i] == now[i]) continue;
    double const change = std::abs(now[i] - before[i]) / before[i];
    largest = std::isnan(change) ? infinite : std::max(largest, change);
  }
  return largest;
}

/// A list of values that rank `root` makes and every rank holds: the groups of gradients, for
/// instance, which would deadlock the run if each rank measured its own times and drew its own
/// conclusions.
///
/// Every rank calls `decide` once. Every rank calls `renew(step)` in every step; it returns at once
/// but at multiples of `every`, where the root says whether there is something new. A root whose
/// measurement throws aborts the communicator with the reason, so that nobody waits for it.
template <class T>
requires std::is_trivially_copyable_v<T>
class Decision {
 public:
  /// @param  every  steps between two chances to renew; 0 = never
  explicit Decision(std::uint64_t every = 0, int root = 0) : every_(every), root_(root) {}

  /// @param  make     called on the root alone; gives the list
  /// @param  seconds  deadline of each broadcast; the others wait while the root measures
  /// @return  the list, equal on all ranks
  /// @throws Error  as operations do; on the root also what `make` throws
  template <Communicator C, class Make>
  std::vector<T> const& decide(C& c, Make&& make, double seconds) {
    auto const always = [] { return true; };
    static_cast<void>(spread(c, first, always, std::forward<Make>(make), seconds));
    return values_;
  }

  /// @param  changed  called on the root alone: is it worth while?
  /// @return  whether the list is a new one
  /// @throws Error  as decide(), and Errc::mismatch when ranks come with different steps
  template <Communicator C, class Changed, class Make>
  bool renew(C& c, std::uint64_t step, Changed&& changed, Make&& make, double seconds) {
    if (every_ == 0 || step % every_ != 0) return false;
    return spread(c, step, std::forward<Changed>(changed), std::forward<Make>(make), seconds);
  }

  [[nodiscard]] std::vector<T> const& values() const noexcept { return values_; }

 private:
  static constexpr std::uint64_t first = ~std::uint64_t{0};
  static constexpr std::uint64_t unchanged = ~std::uint64_t{0};

  template <Communicator C, class Changed, class Make>
  bool spread(C& c, std::uint64_t step, Changed&& changed, Make&& make, double seconds) {
    std::uint64_t head[2] = {step, unchanged};
    std::vector<T> values;
    if (c.rank() == root_) {
      try {
        if (changed()) {
          values = make();
          head[1] = values.size();
        }
      } catch (std::exception const& e) {
        c.abort(text("the decision of rank ", root_, " failed: ", e.what()).c_str());
        throw;
      }
    }
    c.broadcast(std::as_writable_bytes(std::span(head)), root_).wait(seconds);
    if (head[0] != step) {
      auto const words = [](std::uint64_t s) {
        return s == first ? text("decides for the first time") : text("renews at step ", s);
      };
      auto const reason = text("rank ", root_, " ", words(head[0]), ", rank ", c.rank(), " ",
                               words(step), "; all ranks renew a decision at the same steps");
      c.abort(reason.c_str());
      throw Error(Errc::mismatch, reason);
    }
    if (head[1] == unchanged) return false;
    values.resize(head[1]);
    c.broadcast(std::as_writable_bytes(std::span(values)), root_).wait(seconds);
    values_ = std::move(values);
    return true;
  }

  std::uint64_t every_;
  int root_;
  std::vector<T> values_{};
};

}  // namespace stagger::collective
