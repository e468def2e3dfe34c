// SPDX-License-Identifier: Apache-2.0
#include <stagger/program/detail/slots.hpp>

#include "catch.hpp"

#include <algorithm>
#include <random>
#include <vector>

#include <stagger/program/lay_out.hpp>
#include <stagger/schedule/proof/evaluate.hpp>

#include "engine/random_table.hpp"

namespace slot_demand_test {

using namespace stagger;
using detail::RowIndices;

TEST_CASE("program/unit_times: with room for everything, a program takes as long as its table",
          "[program]") {
  random_table::Random random(4);
  for (int i = 0; i < 300; ++i) {
    auto const table = random_table::any(random);
    LayOutOptions options;
    options.spare_slots = 100;
    auto const times = detail::unit_times(lay_out(table, options));
    auto const expected = schedule::evaluate(table, schedule::Costs::uniform(1, 1, 1));
    std::uint32_t last = 0;
    for (std::size_t r = 0; r < times.size(); ++r) {
      REQUIRE(times[r].start.size() == table.row(static_cast<int>(r)).size());
      for (std::size_t k = 0; k < times[r].end.size(); ++k) {
        auto const kind = table.row(static_cast<int>(r))[k].kind;
        REQUIRE(times[r].end[k] - times[r].start[k] ==
                (kind == schedule::Kind::backward ? 2U : 1U));
        if (k > 0) REQUIRE(times[r].end[k - 1] <= times[r].start[k]);
        last = std::max(last, times[r].end[k]);
      }
    }
    REQUIRE(static_cast<double>(last) == Approx(expected.makespan_s));
  }
}

TEST_CASE("program/used_at_once: messages between their writing and their release", "[program]") {
  std::mt19937 random(5);
  for (int i = 0; i < 500; ++i) {
    std::size_t const count = 1 + random() % 6;
    RowIndices written, released, writes, releases;
    std::uint32_t now = 0;
    std::uint32_t then = 0;
    for (std::uint32_t m = 0; m < count; ++m) {
      written.push_back(m);
      released.push_back(m);
      writes.push_back(now += static_cast<std::uint32_t>(random() % 3));
      releases.push_back(then = std::max(then, now) + 1 + static_cast<std::uint32_t>(random() % 4));
    }
    std::uint32_t most = 0;
    for (std::size_t k = 0; k < count; ++k) {
      std::uint32_t alive = 0;
      for (std::size_t j = 0; j <= k; ++j) alive += j == k || releases[j] > writes[k];
      most = std::max(most, alive);
    }
    REQUIRE(detail::used_at_once(written, writes, released, releases) == most);
  }
}

}  // namespace slot_demand_test
