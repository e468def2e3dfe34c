// SPDX-License-Identifier: Apache-2.0
#include <stagger/placement/allocation.hpp>

#include "catch.hpp"

#include <vector>

#include <stagger/placement/equal_distribution.hpp>
#include <stagger/placement/hybrid_distribution.hpp>
#include <stagger/placement/parameter_home.hpp>

namespace cluster = stagger::cluster;
namespace placement = stagger::placement;
using Allocated = std::vector<std::vector<int>>;

TEST_CASE("placement/EqualDistribution: worker i gets the i-th device of every node",
          "[placement]") {
  cluster::Cluster c;
  c.intra.resize(2);
  for (int d = 0; d < 6; ++d)
    c.devices.push_back({.kind = "x", .memory_bytes = 1, .speed = 1, .node = d / 3});
  CHECK(placement::EqualDistribution{}.allocate(c, 3) == Allocated{{0, 3}, {1, 4}, {2, 5}});
}

TEST_CASE("placement/HybridDistribution: of equally bad matchings, the better in both together",
          "[placement]") {
  // a with b and a with c differ equally in memory, by 2 of 8, and that is their worse side; in
  // compute a with b differs by 4 of 32 and a with c not at all. a with d differs by 16 of 32.
  cluster::Cluster c;
  c.intra.resize(1);
  c.devices = {{.kind = "a", .memory_bytes = 1, .speed = 13},
               {.kind = "b", .memory_bytes = 2, .speed = 5},
               {.kind = "c", .memory_bytes = 2, .speed = 3},
               {.kind = "d", .memory_bytes = 3, .speed = 11}};
  CHECK(placement::HybridDistribution{}.allocate(c, 2) == Allocated{{0, 2}, {1, 3}});
}

TEST_CASE("placement/Worker: a layer at a cut belongs to the stage that begins there",
          "[placement]") {
  placement::Worker const worker{.cuts = {2, 5}, .nodes = {7, 8, 9}};
  std::vector<int> nodes;
  for (int layer = 0; layer < 7; ++layer) nodes.push_back(worker.node_of(layer));
  CHECK(nodes == std::vector<int>{7, 7, 8, 8, 8, 9, 9});
}
