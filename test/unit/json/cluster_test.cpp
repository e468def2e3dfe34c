// SPDX-License-Identifier: Apache-2.0
#include <stagger/json/cluster.hpp>

#include <string>

#include <stagger/cluster/presets.hpp>

#include "catch.hpp"

namespace cluster_test {

namespace cluster = stagger::cluster;
namespace json = stagger::json;

namespace {

std::string const a_link = R"({"alpha_s": 0.5, "bytes_per_s": 10, "all_reduce_bytes_per_s": 8})";
std::string const device = R"({"count": 2, "kind": "V", "memory_bytes": 100, "speed": 2})";

std::string file(std::string const& device_text, std::string const& intra = a_link,
                 std::string const& count = "2", std::string const& inter = a_link) {
  return "{\"name\": \"c\",\n\"nodes\": [{\"count\": " + count + ", \"devices\": [\n" +
         device_text + "],\n\"intra\": " + intra + "}],\n\"inter\": " + inter + "}";
}

}  // namespace

TEST_CASE("json/read_cluster: devices are numbered through the nodes in the file's order",
          "[json]") {
  auto const c = json::read_cluster(
      file(device + ", {\"count\": 1, \"kind\": \"G\", \"memory_bytes\": 7, \"speed\": 0.5}"),
      "c.json");
  REQUIRE(c.size() == 6);
  CHECK(c.nodes() == 2);
  CHECK(c.device(1).kind == "V");
  CHECK(c.device(2).kind == "G");
  CHECK(c.device(3).kind == "V");
  CHECK(c.device(3).node == 1);
  CHECK(c.device(5).memory_bytes == 7);
  CHECK(c.transfer_s(0, 3, 5) == 1);
  CHECK(c.all_reduce_s(c.devices_of(0), 6) == 2 * 2 * 0.5 + 4.0 / 3 * 6 / 8);
  // A node of one device needs no a_link inside, a cluster of one node none between.
  CHECK(json::read_cluster(R"({"nodes": [{"count": 1, "devices": [{"count": 1, "kind": "x",
      "memory_bytes": 1, "speed": 1}]}]})",
                           "c.json")
            .size() == 1);
}

TEST_CASE("json/write_cluster: the papers' clusters read back as themselves", "[json]") {
  for (auto const* name : {"dapple-a:2x8", "dapple-b:3", "dapple-c:1", "hetpipe"}) {
    CAPTURE(name);
    auto const c = cluster::preset(name);
    std::string const text = json::write_cluster(c);
    CHECK(json::read_cluster(text, "c.json") == c);
    CHECK(json::write_cluster(json::read_cluster(text, "c.json")) == text);
  }
}

TEST_CASE("json/write_cluster: neighbours that differ in one thing are not written as one group",
          "[json]") {
  cluster::Cluster c;
  c.intra = {{.alpha_s = 0.5, .bytes_per_s = 10}};
  c.devices = {{.kind = "x", .memory_bytes = 5, .speed = 1},
               {.kind = "x", .memory_bytes = 7, .speed = 1},
               {.kind = "x", .memory_bytes = 7, .speed = 2},
               {.kind = "y", .memory_bytes = 7, .speed = 2},
               {.kind = "y", .memory_bytes = 7, .speed = 2}};
  std::string const text = json::write_cluster(c);
  CHECK(json::read_cluster(text, "c.json").devices == c.devices);
  CHECK_THAT(text, Catch::Contains("\"count\":2,\"kind\":\"y\""));
}

TEST_CASE("json/read_cluster: what is wrong is named by file, line, field and value", "[json]") {
  auto const refused = [](std::string const& text, std::string const& words) {
    CAPTURE(text);
    CHECK_THROWS_WITH(json::read_cluster(text, "c.json"), Catch::Contains(words));
  };
  auto const group = [](char const* count, char const* memory, char const* speed) {
    return std::string("{\"count\": ") + count + ", \"kind\": \"V\", \"memory_bytes\": " + memory +
           ", \"speed\": " + speed + "}";
  };
  refused(file(group("0", "1", "1")),
          "c.json, line 3: nodes[0].devices[0].count is 0; give a whole");
  refused(file(group("1", "0", "1")), "line 3: nodes[0].devices[0].memory_bytes is 0");
  refused(file(group("1", "1", "0")), "line 3: nodes[0].devices[0].speed is 0; give a finite");
  refused(file(group("1", "1", "-2")), "nodes[0].devices[0].speed is -2");
  refused(file(group("5000", "1", "1")), "count is 5000; give a whole number from 1 to 4096");
  refused(file(device, a_link, "2049"),
          "nodes[0].count is 2049; a cluster has at most 4096 devices");
  refused(file("{\"count\": 1, \"memory_bytes\": 1, \"speed\": 1}"),
          "line 3: nodes[0].devices[0] has no 'kind'");
  refused(file(device, R"({"alpha_s": 0, "bytes_per_s": 0})"),
          "line 4: nodes[0].intra.bytes_per_s is 0; give a finite number above 0");
  refused(file(device, a_link, "2", R"({"alpha_s": -1, "bytes_per_s": 1})"),
          "line 5: inter.alpha_s is -1");
  refused(file(device, R"({"alpha_s": 0, "bytes_per_s": 1, "all_reduce_bytes_per_s": [0, 0, -1]})"),
          "nodes[0].intra.all_reduce_bytes_per_s[2] is -1");
  refused(file(device, R"({"alpha_s": 0, "bytes_per_s": 1, "all_reduce_bytes_per_s": [1, 1]})"),
          "all_reduce_bytes_per_s is [1,1]; a list has an entry for 0, 1, 2");
  refused(file(""), "nodes[0].devices is []; a node has one device or more");
  refused("{\"nodes\": []}", "nodes is []; give one node or more");
  refused("{}", "c.json, line 1: the file has no 'nodes'");
  std::string const pair =
      "{\"nodes\": [{\"count\": 2, \"devices\": [" + device + "], \"intra\": " + a_link + "}]}";
  refused(pair, "has no 'inter'");
}

}  // namespace cluster_test
