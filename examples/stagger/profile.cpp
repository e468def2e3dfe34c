// SPDX-License-Identifier: Apache-2.0
#include "profile.hpp"

#include <cstdio>
#include <cstdlib>

#include <stagger/cluster/presets.hpp>
#include <stagger/json/cluster.hpp>
#include <stagger/json/profile.hpp>

#include "../terminal_text.hpp"
#include "command.hpp"

namespace tool {

stagger::cluster::Profile read_profile(std::string const& path) {
  auto profile = stagger::json::read_any_profile(read_file(path), source_name(path));
  for (auto const& doubt : stagger::cluster::doubts(profile))
    std::fprintf(stderr, "warning: %s: %s\n", cli::escaped(source_name(path)).c_str(),
                 cli::escaped(doubt).c_str());
  return profile;
}

stagger::cluster::Cluster read_cluster(std::string const& name) {
  if (stagger::cluster::is_preset(name)) return stagger::cluster::preset(name);
  return stagger::json::read_cluster(read_file(name), source_name(name));
}

std::vector<Flag> ModelAndCluster::flags(Flags& app) {
  return {app.add("--profile", profile_,
                  "Layers, JSON or PipeDream's graph.txt; - is standard input", "FILE"),
          app.add("--cluster", cluster_,
                  "Devices and links, JSON, or dapple-a:SxN | dapple-b:S | dapple-c:S | hetpipe",
                  "FILE")};
}

void ModelAndCluster::require(std::string const& command, std::string const& no_profile,
                              std::string const& no_cluster) const {
  if (profile_.empty()) refuse(command + " needs --profile FILE" + no_profile);
  if (cluster_.empty()) refuse(command + " needs --cluster FILE, or " + no_cluster);
}

std::string profiles_folder(std::string const& flag) {
  char const* const set = std::getenv("STAGGER_PROFILES");
  return flag.empty() && set != nullptr ? set : flag;
}

Layers read_layers(std::string const& path) {
  auto const profile = stagger::json::read_any_profile(read_file(path), source_name(path),
                                                       stagger::json::ProfileUse::gradients);
  Layers layers;
  for (auto const& layer : profile.layers) {
    layers.forward_s += layer.forward_s;
    layers.backward_s.push_back(layer.backward_s);
    layers.bytes.push_back(layer.parameter_bytes);
  }
  return layers;
}

}  // namespace tool
