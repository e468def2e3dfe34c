// SPDX-License-Identifier: Apache-2.0
#include "profile.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include <stagger/cluster/graph_txt.hpp>
#include <stagger/cluster/presets.hpp>
#include <stagger/core/error.hpp>
#include <stagger/json/cluster.hpp>
#include <stagger/json/profile.hpp>

#include "command.hpp"

namespace tool {

namespace {

void warn(std::string const& path, stagger::cluster::Profile const& profile) {
  for (auto const& doubt : stagger::cluster::doubts(profile))
    std::fprintf(stderr, "warning: %s: %s\n", stagger::printable(source_name(path)).c_str(),
                 stagger::printable(doubt).c_str());
}

}  // namespace

stagger::cluster::Cluster read_cluster(std::string const& name) {
  if (stagger::cluster::is_preset(name)) return stagger::cluster::preset(name);
  return stagger::json::read_cluster(read_file(name), source_name(name));
}

stagger::cluster::Profile ModelAndCluster::profile() const {
  if (needs_batch_) require_count(batch_flag_, batch_);
  std::string text = read_file(profile_);
  std::string const source = source_name(profile_);
  bool const graph = stagger::cluster::is_graph_txt(text);
  if (graph && needs_batch_ && batch_ == 0)
    refuse(
        source +
        " does not say for how many samples its times and sizes are; give --profile-batch N, the "
        "batch that was profiled");
  if (!graph && batch_ != 0)
    refuse("--profile-batch is for PipeDream's graph.txt, and " + source +
           " says its batch itself; leave --profile-batch out");
  // Where the answer does not depend on the batch, any will do.
  auto profile = stagger::json::read_any_profile(
      std::move(text), source, stagger::json::ProfileUse::planning, std::max(batch_, 1));
  warn(profile_, profile);
  return profile;
}

Flag ModelAndCluster::batch_flag(Flags& app) {
  needs_batch_ = true;
  batch_flag_ = app.add("--profile-batch", batch_,
                        "Samples that a graph.txt is for, which it does not say", "N");
  return batch_flag_;
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
  warn(path, profile);
  Layers layers;
  for (auto const& layer : profile.layers) {
    layers.forward_s += layer.forward_s;
    layers.backward_s.push_back(layer.backward_s);
    layers.bytes.push_back(layer.parameter_bytes);
  }
  return layers;
}

}  // namespace tool
