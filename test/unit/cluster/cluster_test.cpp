// SPDX-License-Identifier: Apache-2.0
#include <stagger/cluster/cluster.hpp>

#include <limits>
#include <vector>

#include <stagger/cluster/presets.hpp>

#include "catch.hpp"

namespace cluster_test {

namespace cluster = stagger::cluster;
using cluster::Cluster;
using stagger::Error;

namespace {

/// Two nodes of two devices: 1 s + bytes / 10 inside, 2 s + bytes / 4 between.
Cluster two_by_two() {
  cluster::Link const intra{.alpha_s = 1, .bytes_per_s = 10};
  return {.name = "2x2",
          .devices = {{"V", 100, 1, 0}, {"V", 100, 1, 0}, {"G", 50, 0.5, 1}, {"G", 50, 0.5, 1}},
          .intra = {intra, intra},
          .inter = {.alpha_s = 2, .bytes_per_s = 4, .all_reduce_bytes_per_s = {0, 0, 5, 6}}};
}

}  // namespace

TEST_CASE("cluster/Cluster: transfers take the link of the node, or the one between nodes",
          "[cluster]") {
  Cluster const c = two_by_two();
  CHECK(c.transfer_s(0, 0, 40) == 0);
  CHECK(c.transfer_s(0, 1, 40) == 5);
  CHECK(c.transfer_s(1, 2, 40) == 12);
  CHECK(c.transfer_s(2, 3, 0) == 1);  // a message without bytes is a message
  CHECK(c.devices_of(1) == std::vector<int>{2, 3});
}

TEST_CASE("cluster/Cluster: an all-reduce is 2(r-1) alpha + 2(r-1)/r bytes / rate", "[cluster]") {
  Cluster const c = two_by_two();
  CHECK(c.all_reduce_s(std::vector{0}, 60) == 0);
  CHECK(c.all_reduce_s(std::vector{0, 1}, 60) == 2 + 6);
  CHECK(c.all_reduce_s(std::vector{0, 2}, 60) == 4 + 12);  // rate 5 for two devices
  CHECK(c.all_reduce_s(std::vector{0, 1, 2}, 60) == Approx(8 + 4.0 / 3 * 10));  // 6 for three
  CHECK(c.all_reduce_s(std::vector{0, 1, 2, 3}, 60) == 12 + 1.5 * 10);          // the last for more
  CHECK(c.all_reduce_s(std::vector{0, 1, 2, 3}, 0) == 0);
}

TEST_CASE("cluster/Cluster: what cannot be names device or link, field and value", "[cluster]") {
  REQUIRE_NOTHROW(require_cluster(two_by_two()));
  auto const refused = [](auto spoil, char const* words) {
    Cluster c = two_by_two();
    spoil(c);
    CHECK_THROWS_WITH(require_cluster(c), Catch::Contains(words));
  };
  double const nan = std::numeric_limits<double>::quiet_NaN();
  refused([](Cluster& c) { c.devices.clear(); }, "no devices");
  refused([](Cluster& c) { c.devices[2].speed = 0; }, "device 2 ('G') has speed = 0");
  refused([](Cluster& c) { c.devices[1].memory_bytes = 0; }, "device 1 ('V') has memory_bytes = 0");
  refused([](Cluster& c) { c.devices[3].node = 2; }, "device 3 ('G') has node = 2");
  refused([](Cluster& c) { c.devices[1].node = 1, c.devices[2].node = 0; },
          "list the devices node by node");
  refused([](Cluster& c) { c.inter.bytes_per_s = 0; }, "link between nodes has bytes_per_s = 0");
  refused([&](Cluster& c) { c.intra[1].alpha_s = nan; }, "link inside node 1 has alpha_s = ");
  refused([](Cluster& c) { c.inter.all_reduce_bytes_per_s[2] = -5; },
          "all_reduce_bytes_per_s = -5");
  refused([](Cluster& c) { c.inter.all_reduce_bytes_per_s = {1, 0}; },
          "link between nodes has all_reduce_bytes_per_s for 0 and 1 devices only");
}

TEST_CASE("cluster/preset: the papers' clusters have their devices, links and all-reduce rates",
          "[cluster]") {
  Cluster const a = cluster::preset("dapple-a:2x8");
  REQUIRE_NOTHROW(require_cluster(a));
  CHECK(a.size() == 16);
  CHECK(a.nodes() == 2);
  CHECK(a.transfer_s(0, 7, 25e9) == 1);
  CHECK(a.transfer_s(7, 8, 3.125e9) == 1);
  // Inside a server floor(r / 2) pairs work at once; across, the Ethernet carries everything.
  CHECK(a.all_reduce_s(a.devices_of(0), 1e9) == Approx(1.75 * 1e9 / 100e9));
  CHECK(a.all_reduce_s(std::vector{0, 1, 2}, 1e9) == Approx(4.0 / 3 * 1e9 / 25e9));
  CHECK(a.all_reduce_s(std::vector{0, 8}, 1e9) == Approx(1e9 / 3.125e9));
  CHECK(cluster::preset("dapple-b:16").nodes() == 16);
  CHECK(cluster::preset("dapple-b:16").inter.bytes_per_s == 3.125e9);
  CHECK(cluster::preset("dapple-c:16").inter.bytes_per_s == 1.25e9);
  CHECK(cluster::preset("dapple-c:16").device(15).memory_bytes == 16'000'000'000);

  Cluster const h = cluster::preset("hetpipe");
  REQUIRE_NOTHROW(require_cluster(h));
  REQUIRE(h.size() == 16);
  REQUIRE(h.nodes() == 4);
  // 2 * cores * clock of the paper's table: 14.9, 16.3, 6.45 and 5.30 TFLOPS.
  CHECK(14.9 * h.device(4).speed == Approx(16.3).epsilon(0.01));
  CHECK(14.9 * h.device(8).speed == Approx(6.45).epsilon(0.01));
  CHECK(14.9 * h.device(12).speed == Approx(5.30).epsilon(0.01));
}

TEST_CASE("cluster/preset: a name of no preset is answered with the forms there are", "[cluster]") {
  for (char const* name : {"dapple-a:2", "dapple-a:2x", "dapple-a:x8", "dapple-a:2x8x",
                           "dapple-b:", "dapple-b:0", "dapple-b:-1", "dapple-c:2x8", "dapple-d:2",
                           "hetpipe2", "dapple-a:99999x99999", "dapple-b", "", "dapple-"}) {
    CAPTURE(name);
    CHECK_THROWS_WITH(cluster::preset(name), Catch::Contains("dapple-a:SxN"));
  }
  CHECK(cluster::is_preset("dapple-x"));
  CHECK_FALSE(cluster::is_preset("cluster.json"));
}

}  // namespace cluster_test
