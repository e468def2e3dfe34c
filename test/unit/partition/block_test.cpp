// SPDX-License-Identifier: Apache-2.0
#include <stagger/partition/block.hpp>

#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

#include <stagger/partition/weighed.hpp>

#include "catch.hpp"
#include "partition/random_model.hpp"

namespace block_test {

using namespace partitions;
using stagger::partition::Block;

TEST_CASE("partition/Block: the largest block is the smallest there is, of equal ones the first",
          "[partition]") {
  Random random(1);
  for (int i = 0; i < 2000; ++i) {
    int const layers = pick(random, 1, 10);
    int const blocks = pick(random, 1, layers);
    std::vector<double> weights;
    for (int l = 0; l < layers; ++l)
      weights.push_back(i % 2 == 0 ? pick(random, 0, 5) : uniform(random, 0, 1));
    double best = std::numeric_limits<double>::infinity();
    std::vector<int> first;
    every_cut(layers, blocks, [&](std::vector<int> const& bounds) {
      double largest = 0;
      for (std::size_t b = 0; b + 1 < bounds.size(); ++b)
        largest = std::max(largest, std::accumulate(weights.begin() + bounds[b],
                                                    weights.begin() + bounds[b + 1], 0.0));
      if (largest >= best - (i % 2 == 0 ? 0 : 1e-12)) return;
      best = largest;
      first.assign(bounds.begin() + 1, bounds.end() - 1);
    });
    CAPTURE(i, layers, blocks);
    REQUIRE(Block::cuts(weights, blocks) == first);
  }
}

TEST_CASE("partition/Block: bad weights and too many blocks are named", "[partition]") {
  std::vector<double> const weights{1, 2};
  CHECK_THROWS_WITH(Block::cuts(weights, 3),
                    Catch::Contains("3 stages cannot be made of 2 layers"));
  CHECK_THROWS_WITH(Block::cuts(weights, 0), Catch::Contains("1 or more"));
  CHECK_THROWS_WITH(Block::cuts(std::vector<double>{1, -2}, 1), Catch::Contains("has weight -2"));
}

TEST_CASE("partition/Block: its cuts are judged with transfers, memory and the devices' own speeds",
          "[partition]") {
  Random random(2);
  auto const p = model(random, 9, false);
  auto const c = devices(random, 3, 100, 200);
  auto const costs = stagger::partition::costs(p, c, numbered(3));
  auto const found = Block{.in_flight = 3}.partition(costs);
  std::vector<int> bounds{0, found.cuts[0], found.cuts[1], 9};
  for (std::size_t s = 0; s < 3; ++s) {
    Stage const really = stage(p, c, numbered(3), bounds, s, 3);
    CHECK(found.stage_s[s] == Approx(really.seconds));
    CHECK(static_cast<double>(found.memory_bytes[s]) == really.bytes);
  }
}

TEST_CASE("partition/Weighed: a partitioner by cost cuts the model it was profiled for, no other",
          "[partition]") {
  Random random(3);
  auto const costs = stagger::partition::costs(model(random, 7, false),
                                               devices(random, 3, 100000, 100000), numbered(3));
  stagger::partition::Weighed const policy{Block{}, costs};
  static_assert(stagger::PartitionPolicy<decltype(policy)> ||
                stagger::PartitionPolicy<std::remove_const_t<decltype(policy)>>);
  CHECK(policy.cuts(7) == Block{}.partition(costs).cuts);
  CHECK_THROWS_WITH(policy.cuts(8), Catch::Contains("the model has 8 layers, its profile 7"));
}

}  // namespace block_test
