// SPDX-License-Identifier: Apache-2.0
// PipeDream's partitioner on its own published profiles.
#include <stagger/json/profile.hpp>

#include <cstdlib>
#include <numeric>
#include <string>
#include <vector>

#include <stagger/partition/pipe_dream.hpp>

#include "catch.hpp"

namespace pipe_dream_test {

namespace cluster = stagger::cluster;

TEST_CASE("json/PipeDream: reaches the published optimiser's speed-ups on its own profiles",
          "[json][profiles]") {
  char const* const folder = std::getenv("STAGGER_PROFILES");
  if (folder == nullptr || *folder == 0) {
    WARN("skipped: STAGGER_PROFILES names no folder with measured profiles");
    return;
  }
  struct Row {
    char const* model;
    double flat, in_nodes;
  };
  for (auto const& [model, flat, in_nodes] :
       {Row{"vgg16", 12.27, 10.02}, {"resnet50", 10.11, 10.26}, {"gnmt", 5.22, 8.07}}) {
    std::string const path = std::string(folder) + "/pipedream-" + model + ".json";
    auto const p = stagger::json::read_profile(stagger::json::read_file(path), path);
    std::vector<int> ids(16);
    std::iota(ids.begin(), ids.end(), 0);
    for (bool const nested : {false, true}) {
      cluster::Cluster c{.name = "", .devices = {}, .intra = {}, .inter = {.bytes_per_s = 1.25e9}};
      c.intra.assign(nested ? 4 : 16, {.bytes_per_s = 10e9});
      for (int d = 0; d < 16; ++d) c.devices.push_back({"V", 1ULL << 40, 1, nested ? d / 4 : d});
      auto const costs = stagger::partition::costs(p, c, ids);
      auto const found = stagger::partition::PipeDream{}.partition(costs);
      double const speed_up = costs.compute_s(0, 0, costs.layers()) / found.bottleneck_s;
      CAPTURE(model, nested);
      CHECK(speed_up >= (nested ? in_nodes : flat) - 0.005);  // published with two decimals
    }
  }
}

}  // namespace pipe_dream_test
