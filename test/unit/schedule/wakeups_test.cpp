// SPDX-License-Identifier: Apache-2.0
#include <stagger/schedule/detail/wakeups.hpp>

#include <utility>
#include <vector>

#include "catch.hpp"

namespace wakeups_test {

namespace {

TEST_CASE("schedule/Wakeups: by time, and of one time by rank", "[schedule]") {
  stagger::schedule::detail::Wakeups wakeups(3);
  wakeups.push(2, 1);
  wakeups.push(1, 2);
  wakeups.push(2, 0);
  std::vector<std::pair<double, int>> order;
  while (!wakeups.empty()) {
    auto const [at_s, rank] = wakeups.pop();
    order.emplace_back(at_s, rank);
  }
  CHECK(order ==
        std::vector<std::pair<double, int>>{{0, 0}, {0, 1}, {0, 2}, {1, 2}, {2, 0}, {2, 1}});
}

}  // namespace

}  // namespace wakeups_test
