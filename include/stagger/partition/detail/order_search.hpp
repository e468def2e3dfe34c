// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A local search for a good order of the devices, without a proof that it is the best.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <stagger/partition/costs.hpp>
#include <stagger/partition/detail/given_order.hpp>

namespace stagger::partition::detail {

/// Swaps and moves devices while that helps, then perturbs the best order a little and continues,
/// until it has tried the given number of orders. Deterministic.
class OrderSearch {
 public:
  /// @param least   lower bound of the bottleneck
  /// @param orders  how many orders may be tried
  constexpr OrderSearch(Costs const& costs, Limits const& limits, double least, long long orders)
      : costs_(costs), limits_(limits), least_(least), left_(orders) {}

  /// @param start  all devices
  constexpr void run(std::vector<int> start) {
    double value = bottleneck(start, no_time);
    descend(start, value);
    if (best_.empty() || value < value_) keep(start, value);
    while (left_ > 0 && value_ > least_ && start.size() > 1) {
      std::vector<int> shaken = best_;
      for (std::size_t i = 0; i < 3; ++i)
        std::swap(shaken[below(shaken.size())], shaken[below(shaken.size())]);
      value = bottleneck(shaken, no_time);
      descend(shaken, value);
      if (value <= value_) keep(shaken, value);
    }
  }

  [[nodiscard]] constexpr double value() const noexcept { return value_; }
  [[nodiscard]] constexpr std::vector<int> const& order() const noexcept { return best_; }

 private:
  constexpr void keep(std::vector<int> const& order, double value) {
    best_ = order;
    value_ = value;
  }

  [[nodiscard]] constexpr std::size_t below(std::size_t n) {
    random_ = random_ * 6364136223846793005U + 1442695040888963407U;
    return (random_ >> 33) % n;
  }

  [[nodiscard]] constexpr double bottleneck(std::vector<int> const& order, double most) {
    --left_;
    return best_of_order(costs_, order, limits_, least_, most);
  }

  constexpr void descend(std::vector<int>& order, double& value) {
    auto const position = [&](std::size_t i) {
      return order.begin() + static_cast<std::ptrdiff_t>(i);
    };
    auto const better = [&] {
      double const tried = bottleneck(order, value);
      if (!(tried < value)) return false;
      value = tried;
      return true;
    };
    for (bool again = true; again && left_ > 0;) {
      again = false;
      for (std::size_t a = 0; a < order.size() && left_ > 0; ++a)
        for (std::size_t b = a + 1; b < order.size() && left_ > 0; ++b) {
          if (costs_.place(order[a]).alike(costs_.place(order[b]))) continue;
          std::swap(order[a], order[b]);
          if (better()) {
            again = true;
            continue;
          }
          std::swap(order[a], order[b]);
          if (b < a + 2) continue;  // a swap
          std::rotate(position(a), position(a + 1), position(b + 1));
          if (better()) {
            again = true;
            continue;
          }
          std::rotate(position(a), position(b), position(b + 1));
          std::rotate(position(a), position(b), position(b + 1));
          if (better()) {
            again = true;
            continue;
          }
          std::rotate(position(a), position(a + 1), position(b + 1));
        }
    }
  }

  Costs const& costs_;
  Limits const& limits_;
  double least_;
  long long left_;
  double value_ = no_time;
  std::vector<int> best_{};
  std::uint64_t random_ = 1;
};

}  // namespace stagger::partition::detail
