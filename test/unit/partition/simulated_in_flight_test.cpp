// SPDX-License-Identifier: Apache-2.0
#include <stagger/partition/simulated_in_flight.hpp>

#include <algorithm>
#include <vector>

#include <stagger/partition/min_max.hpp>

#include "catch.hpp"
#include "partition/random_model.hpp"

namespace partition = stagger::partition;
using namespace partitions;
using partition::InFlight;
using Counts = std::vector<int>;

namespace {

partition::Costs equal(int stages) {
  Profile p{.name = "equal", .batch = 1, .device = "a", .layers = {}};
  for (int l = 0; l < stages; ++l)
    p.layers.push_back(
        {.forward_s = 1, .backward_s = 2, .parameter_bytes = 10, .stash_bytes = 100});
  Cluster c{.name = "", .devices = {}, .intra = {{0, 1e300, {}}}, .inter = {}};
  c.devices.assign(static_cast<std::size_t>(stages), {"a", 10'000, 1, 0});
  return partition::costs(p, c, numbered(stages));
}

}  // namespace

TEST_CASE("partition/simulated_in_flight: equal stages hold more than the balanced rule says",
          "[partition]") {
  auto const costs = equal(4);
  std::vector<int> const cuts{1, 2, 3};
  CHECK(partition::simulated_in_flight(costs, cuts, numbered(4), 4) == Counts{4, 4, 4, 1});
  CHECK(partition::simulated_in_flight(costs, cuts, numbered(4), 8) == Counts{8, 7, 6, 1});
  CHECK(partition::simulated_in_flight(costs, cuts, numbered(4), 1) == Counts{1, 1, 1, 1});
}

TEST_CASE("partition/simulated_in_flight: never more than are in the pipeline, the last stage one",
          "[partition]") {
  Random random(5);
  int fewer = 0;
  for (int i = 0; i < 300; ++i) {
    int const layers = pick(random, 1, 9);
    int const stages = pick(random, 1, std::min(layers, 4));
    int const in_flight = pick(random, 1, 6);
    auto const p = model(random, layers, i % 2 == 0);
    auto const c = devices(random, stages, 40, 90);
    auto const costs = partition::costs(p, c, numbered(stages));
    Counts cuts;
    for (int s = 1; s < stages; ++s) cuts.push_back(layers * s / stages);
    auto const held = partition::simulated_in_flight(costs, cuts, numbered(stages), in_flight);
    REQUIRE(held.size() == static_cast<std::size_t>(stages));
    CHECK(held.back() == 1);
    for (int const h : held) {
      CHECK(h >= 1);
      CHECK(h <= in_flight);
    }
    auto const safe = partition::judge(costs, cuts, numbered(stages), InFlight::safe, in_flight);
    auto const played = partition::judge_held(costs, cuts, numbered(stages), held, in_flight);
    for (std::size_t s = 0; s < held.size(); ++s) {
      CHECK(played.memory_bytes[s] <= safe.memory_bytes[s]);
      fewer += played.memory_bytes[s] < safe.memory_bytes[s] ? 1 : 0;
    }
    CHECK(played.stage_s == safe.stage_s);
  }
  CHECK(fewer > 0);
}

TEST_CASE("partition/simulated_in_flight: what cannot be played is refused", "[partition]") {
  auto const costs = equal(2);
  CHECK_THROWS_WITH(partition::simulated_in_flight(costs, {1}, numbered(2), 0),
                    Catch::Contains("0 minibatches in flight"));
  CHECK_THROWS_WITH(partition::simulated_in_flight(costs, {2}, numbered(2), 1),
                    Catch::Contains("cuts must rise"));
  CHECK_THROWS_WITH(partition::simulated_in_flight(costs, {1}, numbered(2), 1, 1.5),
                    "a forward cannot take 1.5 of a stage's time; give a share of 0 to 1");
  std::vector<int> const one{1};
  CHECK_THROWS_WITH(partition::judge_held(costs, {1}, numbered(2), one, 1),
                    "1 counts of minibatches for 2 stages; give one for each");
}
