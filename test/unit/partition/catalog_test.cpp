// SPDX-License-Identifier: Apache-2.0
#include <stagger/partition/catalog.hpp>

#include <string>
#include <vector>

#include <stagger/core/error.hpp>

#include "catch.hpp"

namespace catalog_test {

namespace cluster = stagger::cluster;
namespace partition = stagger::partition;
using partition::Named;

namespace {

/// Layers of 1, 1, 1, 3 and 2 seconds on two equal devices of one node, and a third that is twice as
/// fast.
partition::Costs costs(std::vector<int> const& devices) {
  cluster::Profile profile{.name = "", .batch = 1, .device = {}, .layers = {}};
  for (double const s : {1.0, 1.0, 1.0, 3.0, 2.0}) {
    profile.layers.push_back({.forward_s = s, .activation_bytes = 0, .parameter_bytes = 10});
  }
  cluster::Cluster c;
  c.intra.resize(1);
  c.devices = {{.kind = "a", .memory_bytes = 1000},
               {.kind = "a", .memory_bytes = 1000},
               {.kind = "b", .memory_bytes = 1000, .speed = 2}};
  return partition::costs(profile, c, devices);
}

}  // namespace

TEST_CASE("partition/Named: each name is the partitioner of its own type", "[partition]") {
  auto const equal = costs({0, 1});
  CHECK(Named{.name = "min-max"}.partition(equal).cuts == std::vector{3});
  CHECK(Named{.name = "block"}.partition(equal).cuts == std::vector{3});
  CHECK(Named{.name = "even"}.partition(equal).cuts == std::vector{3});
  CHECK(Named{.name = "pipedream"}.partition(equal).devices.size() == 1);  // two replicas
  auto const faster = costs({0, 2});
  CHECK(Named{.name = "min-max"}.partition(faster).cuts ==
        std::vector{2});  // of equal ones, the first
  CHECK(Named{.name = "min-max"}.partition(costs({2, 0})).cuts == std::vector{4});
  CHECK(Named{.name = "even"}.partition(costs({2, 0})).cuts == std::vector{3});
}

TEST_CASE("partition/Named: options reach the partitioner", "[partition]") {
  auto const faster = costs({2, 0});
  CHECK(Named{.name = "min-max"}.partition(faster).bottleneck_s == 3);
  CHECK(Named{.name = "min-max", .any_order = true}.partition(faster).bottleneck_s == 3);
  for (auto const name : partition::names) {
    CAPTURE(name);
    auto const one = Named{.name = std::string(name)}.partition(costs({0, 1}));
    auto const four = Named{.name = std::string(name), .in_flight = 4}.partition(costs({0, 1}));
    if (one.stages() > 1) CHECK(four.memory_bytes[0] > one.memory_bytes[0]);
    CHECK_THROWS_WITH((Named{.name = std::string(name), .in_flight = 0}.partition(costs({0, 1}))),
                      Catch::Contains("in flight"));
  }
}

TEST_CASE("partition/Named: a bound is given where the partitioner knows none", "[partition]") {
  auto const uneven = Named{.name = "even"}.partition(costs({2, 0}));
  CHECK(uneven.bottleneck_s == 5);
  CHECK(uneven.lower_bound_s == 3);
  CHECK(uneven.gap() == Approx(2.0 / 3));
}

TEST_CASE("partition/Named: an unknown name, and an order for one that takes none, are refused",
          "[partition]") {
  CHECK_THROWS_WITH(Named{.name = "min-maks"}.partition(costs({0, 1})),
                    "there is no partitioner 'min-maks'; the nearest is 'min-max'");
  for (char const* name : {"pipedream", "block", "even"})
    CHECK_THROWS_WITH((Named{.name = name, .any_order = true}.partition(costs({0, 1}))),
                      Catch::Contains("takes devices in the given order"));
}

}  // namespace catalog_test
