// SPDX-License-Identifier: Apache-2.0
#include <stagger/placement/allocation.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <stagger/cluster/presets.hpp>
#include <stagger/placement/hybrid_distribution.hpp>
#include <stagger/placement/parameter_placement.hpp>

#include "catch.hpp"

namespace allocation_test {

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

TEST_CASE("placement/allocation: what cannot be shared out is named", "[placement]") {
  cluster::Cluster c = cluster::hetpipe();
  CHECK_THROWS_WITH(placement::NodePartition{}.allocate(c, 3),
                    Catch::Contains("NodePartition wants as many workers as there are nodes"));
  CHECK_THROWS_WITH(placement::EqualDistribution{}.allocate(c, 3),
                    Catch::Contains("the number in one node is 4"));
  CHECK_THROWS_WITH(placement::EqualDistribution{}.allocate(c, -1), Catch::Contains("wants"));
  CHECK_THROWS_WITH(placement::EqualDistribution{}.allocate(c, 1'000'000'000),
                    Catch::Contains("wants"));
  CHECK_THROWS_WITH(placement::HybridDistribution{}.allocate(c, 3),
                    Catch::Contains("the number of workers is 3"));
  CHECK_THROWS_WITH(placement::HybridDistribution{}.allocate(c, 0), Catch::Contains("is 0"));
  c.devices.pop_back();
  CHECK_THROWS_WITH(placement::HybridDistribution{}.allocate(c, 4),
                    Catch::Contains("equally many devices of each kind"));
  CHECK_THROWS_WITH(placement::NodePartition{}.allocate(c, 4),
                    Catch::Contains("nodes of equally many devices"));
  for (auto& device : c.devices) device.kind = c.devices[0].kind;
  CHECK_THROWS_WITH(placement::HybridDistribution{}.allocate(c, 4),
                    Catch::Contains("an even number of kinds"));
  std::vector<placement::Worker> const unlike{{{1}, {0, 1}}, {{2}, {0, 1}}};
  CHECK_THROWS_WITH(placement::Local{}.layer_nodes(3, 2, unlike),
                    Catch::Contains("worker 1 has other"));
}

TEST_CASE("placement/HybridDistribution: every device is used once, whatever the kinds",
          "[placement]") {
  for (int kinds = 2; kinds <= 6; kinds += 2)
    for (int share = 1; share <= 3; ++share)
      for (int each = 1; each <= 2; ++each) {
        cluster::Cluster c{.name = "", .devices = {}, .intra = {{}}, .inter = {}};
        for (int k = 0; k < kinds; ++k)
          for (int d = 0; d < share * each; ++d)
            c.devices.push_back({std::string(1, static_cast<char>('a' + k)),
                                 static_cast<std::uint64_t>(100 + 7 * (k * k % 5)),
                                 1 + 0.3 * (k * 3 % 4), 0});
        auto const workers = placement::HybridDistribution{}.allocate(c, kinds / 2 * each);
        std::vector<int> seen(c.devices.size());
        for (auto const& w : workers) {
          CHECK(w.size() == static_cast<std::size_t>(2 * share));
          for (int const d : w) ++seen[static_cast<std::size_t>(d)];
        }
        CHECK(seen == std::vector<int>(c.devices.size(), 1));
      }
}

}  // namespace allocation_test
