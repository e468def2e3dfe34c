// SPDX-License-Identifier: Apache-2.0
// json_profile_fuzz [COUNT [SEED]]: COUNT mutated profile, graph and cluster files (default 10^6)
// through their readers. A file is read, or refused by a stagger::Error that names it; anything
// else ends the program. What was read is legal and comes back from what is written.

#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include <stagger/cluster/presets.hpp>
#include <stagger/core/error.hpp>
#include <stagger/json/cluster.hpp>
#include <stagger/json/profile.hpp>

#include "driver.hpp"

namespace {

namespace cluster = stagger::cluster;
namespace json = stagger::json;

constexpr std::string_view pieces[] = {"0",
                                       "1",
                                       "-1",
                                       "1e308",
                                       "1e999",
                                       "-0.0",
                                       "4096",
                                       "2147483648",
                                       "18446744073709551616",
                                       "null",
                                       "true",
                                       "[",
                                       "]",
                                       "{",
                                       "}",
                                       "\"",
                                       ",",
                                       ":",
                                       ";",
                                       "\n",
                                       "\t",
                                       " ",
                                       " -- ",
                                       "node1",
                                       "node2",
                                       "node9",
                                       "Input",
                                       "nan",
                                       "inf",
                                       "\xff",
                                       "\\u0000",
                                       "\"batch\":",
                                       "\"count\":",
                                       "\"layers\":",
                                       "=",
                                       ".",
                                       "__getitem__",
                                       "\r\n",
                                       "{\"a\":1}",
                                       "forward_compute_time=",
                                       "\"intra\":"};

std::vector<std::string> seeds() {
  cluster::Profile profile{
      .name = "p",
      .batch = 2,
      .device = "V",
      .layers = {{.name = "a", .forward_s = 1, .backward_s = 2, .activation_bytes = 3},
                 {.name = "b",
                  .forward_s = 0.25,
                  .backward_s = 2,
                  .backward_weight_s = 1,
                  .parameter_bytes = 7,
                  .stash_bytes = 5,
                  .by_device = {{"G", 1, 2, {}}}}}};
  std::string const meta =
      " -- forward_compute_time=1.000, backward_compute_time=2.500, activation_size=[3.0; 1.0], "
      "parameter_size=4.000\n";
  return {json::write_profile(profile),
          json::write_cluster(cluster::preset("dapple-a:2x2")),
          json::write_cluster(cluster::preset("hetpipe")),
          "node1 -- Input0" + meta + "node2 -- Conv(a, b=1)" + meta + "node3 -- ReLU" + meta +
              "node4 -- Add" + meta +
              "\tnode1 -- node2\n\tnode2 -- node3\n\tnode2 -- node4\n  node3 -- node4\n",
          "node1 -- a" + meta,
          "{}",
          ""};
}

fuzz::Program const program{
    .name = "json_profile_fuzz", .pieces = pieces, .seeds = seeds(), .longest = 24, .cut = 8};

/// True if the file was read.
bool profile(std::string const& text) {
  cluster::Profile read;
  try {
    read = json::read_any_profile(text, "fuzz", json::ProfileUse::planning, 1);
  } catch (stagger::Error const& error) {
    program.refused(error, text);
    return false;
  }
  cluster::require_profile(read);
  // Names that are no UTF-8 change in the writing, once.
  cluster::Profile const once = json::read_profile(json::write_profile(read), "fuzz");
  if (once.size() != read.size()) program.fail("layers are lost in writing", text);
  if (json::read_profile(json::write_profile(once), "fuzz") != once)
    program.fail("a written profile reads as another", text);
  return true;
}

bool devices(std::string const& text) {
  cluster::Cluster read;
  try {
    read = json::read_cluster(text, "fuzz");
  } catch (stagger::Error const& error) {
    program.refused(error, text);
    return false;
  }
  cluster::require_cluster(read);
  if (json::read_cluster(json::write_cluster(read), "fuzz") != read)
    program.fail("a written cluster reads as another", text);
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  long long profiles = 0, clusters = 0;
  return program.run(
      argc, argv,
      [&](std::string const& text) {
        profiles += profile(text) ? 1 : 0;
        clusters += devices(text) ? 1 : 0;
      },
      [&](long long count, unsigned long long seed) {
        std::printf("%lld files with seed %llu: %lld profiles, %lld clusters read\n", count, seed,
                    profiles, clusters);
        return profiles > 0 && clusters > 0 && profiles + clusters < count;
      });
}
