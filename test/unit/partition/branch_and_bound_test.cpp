// SPDX-License-Identifier: Apache-2.0
#include <stagger/partition/branch_and_bound.hpp>

#include <algorithm>
#include <string>
#include <vector>

#include <stagger/partition/min_max.hpp>

#include "catch.hpp"
#include "partition/random_model.hpp"
#include "sanitized.hpp"

namespace partition = stagger::partition;
using namespace partitions;
using partition::BranchAndBound;
using partition::InFlight;
using partition::MinMax;

TEST_CASE("partition/BranchAndBound: the bottleneck of MinMax and of trying everything",
          "[partition]") {
  Random random(7);
  int impossible = 0;
  for (int i = 0; i < (sanitized ? 150 : 500); ++i) {
    int const layers = pick(random, 1, 12);
    int const stages = pick(random, 1, std::min(layers, 4));
    auto const p = model(random, layers, i % 2 == 0);
    auto const c = devices(random, stages, 40, i % 3 == 0 ? 120 : 2000);
    bool const any = i % 5 != 0;
    auto const rule = i % 4 == 0 ? InFlight::balanced : InFlight::safe;
    int const in_flight = pick(random, 1, 4);
    CAPTURE(i, layers, stages, any);
    auto const costs = partition::costs(p, c, numbered(stages));
    double best = std::numeric_limits<double>::infinity();
    auto const with = [&](std::vector<int> const& order) {
      every_cut(layers, stages, [&](std::vector<int> const& bounds) {
        best =
            std::min(best, bottleneck(p, c, order, bounds, in_flight, rule == InFlight::balanced));
      });
    };
    if (any)
      every_order(stages, stages, with);
    else
      with(numbered(stages));
    BranchAndBound const policy{.any_order = any, .rule = rule, .in_flight = in_flight};
    MinMax const other{.any_order = any, .rule = rule, .in_flight = in_flight};
    if (best == std::numeric_limits<double>::infinity()) {
      ++impossible;
      CHECK_THROWS_AS(policy.partition(costs), partition::DoesNotFit);
      CHECK_THROWS_AS(other.partition(costs), partition::DoesNotFit);
      continue;
    }
    auto const found = policy.partition(costs), same = other.partition(costs);
    REQUIRE(found.bottleneck_s == Approx(best).margin(1e-12));
    CHECK(found.bottleneck_s == Approx(same.bottleneck_s).margin(1e-12));
    CHECK(found.gap() == 0);
    if (!any) CHECK(found.cuts == same.cuts);
    for (std::size_t s = 0; s < found.devices.size(); ++s)
      CHECK(found.memory_bytes[s] <= c.device(found.devices[s].front()).memory_bytes);
  }
  CHECK(impossible > 10);
  CHECK(impossible < 400);
}

TEST_CASE("partition/BranchAndBound: agrees with MinMax on 30 layers and 8 devices in any order",
          "[partition]") {
  Random random(11);
  for (int i = 0; i < (sanitized ? 1 : 4); ++i) {
    auto const p = model(random, 30, false);
    auto const c = devices(random, 8, 4000, 8000);
    auto const costs = partition::costs(p, c, numbered(8));
    double const found = BranchAndBound{}.partition(costs).bottleneck_s;
    double const same = MinMax{.any_order = true}.partition(costs).bottleneck_s;
    CAPTURE(i);
    CHECK(found == Approx(same).epsilon(1e-9));
  }
}

TEST_CASE("partition/BranchAndBound: what cannot be is refused as MinMax does", "[partition]") {
  Random random(1);
  auto const p = model(random, 2, true);
  auto const c = devices(random, 3, 40, 50);
  CHECK_THROWS_WITH(BranchAndBound{}.partition(partition::costs(p, c, numbered(3))),
                    "3 stages cannot be made of 2 layers; use 1 to 2");
  CHECK_THROWS_WITH(BranchAndBound{.in_flight = 0}.partition(partition::costs(p, c, numbered(2))),
                    Catch::Contains("0 minibatches in flight cannot run"));
}
