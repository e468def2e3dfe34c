// SPDX-License-Identifier: Apache-2.0
// stagger partition: splits a model into stages for given devices of a cluster.

#include <chrono>
#include <cstddef>
#include <cstdio>
#include <string>
#include <vector>

#include <stagger/core/error.hpp>
#include <stagger/partition/catalog.hpp>
#include <stagger/report/format.hpp>
#include <stagger/report/table.hpp>

#include "../command.hpp"
#include "../pipeline.hpp"
#include "../profile.hpp"

namespace tool {

namespace {

namespace partition = stagger::partition;
namespace report = stagger::report;
using stagger::cluster::Cluster;
using stagger::cluster::Profile;

constexpr std::string_view min_max = partition::name_of<partition::MinMax>;

/// The devices that --devices names.
struct Named {
  std::vector<std::string> names;  ///< [devices]
  std::vector<int> ids;            ///< [devices] in the cluster
};

/// Parses KIND or KIND@NODE, separated by commas. Each name means the first device of that kind
/// (and node) that no earlier name means.
Named devices_of(std::string const& list, Cluster const& cluster) {
  Named result;
  std::vector<bool> taken(cluster.devices.size());
  std::vector<std::string> kinds;
  for (auto const& d : cluster.devices) kinds.push_back(d.kind);
  for (std::size_t begin = 0; begin <= list.size();) {
    std::size_t const end = std::min(list.find(',', begin), list.size());
    std::string const name = list.substr(begin, end - begin);
    begin = end + 1;
    std::string kind = name;
    int node = -1;
    std::size_t const at = name.rfind('@');
    if (at != std::string::npos) {
      std::string const digits = name.substr(at + 1);
      if (digits.empty() || digits.size() > 6 ||
          digits.find_first_not_of("0123456789") != std::string::npos ||
          std::stoi(digits) >= cluster.nodes())
        refuse("--devices " + name + " names no node; nodes are numbered 0 to " +
               std::to_string(cluster.nodes() - 1));
      node = std::stoi(digits);
      kind = name.substr(0, at);
    }
    std::size_t of_kind = 0;
    int found = -1;
    for (std::size_t d = 0; d < taken.size(); ++d) {
      auto const& device = cluster.devices[d];
      if (device.kind != kind || (node >= 0 && device.node != node)) continue;
      ++of_kind;
      if (!taken[d] && found < 0) found = static_cast<int>(d);
    }
    if (of_kind == 0 && node < 0) require_word("--devices", kind, kinds);
    if (found < 0)
      refuse("--devices names '" + name + "' more often than the cluster has it; it has " +
             std::to_string(of_kind));
    taken[static_cast<std::size_t>(found)] = true;
    result.names.push_back(name);
    result.ids.push_back(found);
  }
  return result;
}

class Partition final : public Command {
 public:
  void flags(Flags& app) override {
    model_.flags(app);
    app.add("--devices", devices_,
            "Kinds, or KIND@NODE, one for each stage; the i-th mention is the i-th device",
            "NAME,...");
    app.add("--policy", policy_.name, alternatives(policies()) + "; default min-max", "WORD");
    in_flight_flag_ = app.add("--in-flight", policy_.in_flight,
                              "Minibatches in flight, which memory must hold; default 1", "N");
    app.add("--any-order", policy_.any_order, "Devices in whatever order is best (min-max)");
    add_formats(app, {"text", "json"});
    app.footer(
        "Example: stagger partition --profile examples/stagger/model.json --cluster hetpipe "
        "--devices V,R,G,Q\n"
        "prints the cuts whose slowest stage is fastest, within each device's memory.");
  }

  Answer run() override {
    bool const json = format() == "json";
    require_word("--policy", policy_.name, policies());
    model_.require("partition", "", "a preset's name");
    if (devices_.empty()) refuse("partition needs --devices NAME,NAME,...");
    require_count(in_flight_flag_, policy_.in_flight);
    if (policy_.any_order && policy_.name != min_max) refuse("--any-order is for --policy min-max");
    Profile const profile = model_.profile();
    Cluster const cluster = model_.cluster();
    Named const named = devices_of(devices_, cluster);
    auto const costs = partition::costs(profile, cluster, named.ids);
    partition::Partition found;
    auto const begin = std::chrono::steady_clock::now();
    try {
      found = policy_.partition(costs);
    } catch (partition::DoesNotFit const& no) {
      std::string const& name = profile.layers[static_cast<std::size_t>(no.shortage().layer)].name;
      return {"",
              std::string(no.what()) +
                  (name.empty()
                       ? ""
                       : " (layer " + std::to_string(no.shortage().layer) + " is '" + name + "')"),
              1};
    }
    std::chrono::duration<double> const took = std::chrono::steady_clock::now() - begin;
    warn(found, cluster);
    return {json ? as_json(found, named, took.count()) : as_text(found, named, profile)};
  }

 private:
  [[nodiscard]] static std::vector<std::string> policies() {
    return {partition::names.begin(), partition::names.end()};
  }

  void warn(partition::Partition const& found, Cluster const& cluster) const {
    for (std::size_t s = 0; s < found.devices.size(); ++s) {
      auto const& device = cluster.device(found.devices[s].front());
      if (found.memory_bytes[s] > device.memory_bytes)
        std::fprintf(stderr,
                     "warning: stage %zu needs %s bytes on '%s', which has %s; min-max keeps to "
                     "memory\n",
                     s, std::to_string(found.memory_bytes[s]).c_str(), device.kind.c_str(),
                     std::to_string(device.memory_bytes).c_str());
    }
  }

  [[nodiscard]] static std::string const& name_of(Named const& named, int id) {
    std::size_t i = 0;
    while (named.ids[i] != id) ++i;
    return named.names[i];
  }

  [[nodiscard]] std::string as_json(partition::Partition const& found, Named const& named,
                                    double solve_s) const {
    Json names = Json::array();
    for (auto const& stage : found.devices) {
      Json replicas = Json::array();
      for (int const id : stage) replicas.push_back(name_of(named, id));
      names.push_back(policy_.name == partition::name_of<partition::PipeDream> ? replicas
                                                                               : replicas.front());
    }
    return dump({{"cuts", found.cuts},
                 {"devices", names},
                 {"stage_s", found.stage_s},
                 {"memory_bytes", found.memory_bytes},
                 {"bottleneck_s", found.bottleneck_s},
                 {"lower_bound_s", found.lower_bound_s},
                 {"solve_s", solve_s}});
  }

  [[nodiscard]] static std::string as_text(partition::Partition const& found, Named const& named,
                                           Profile const& profile) {
    report::TextTable table({"stage", "layers", "first layer", "device", "time", "memory"});
    for (std::size_t s = 0; s < found.devices.size(); ++s) {
      int const first = s == 0 ? 0 : found.cuts[s - 1];
      int const last = s < found.cuts.size() ? found.cuts[s] : profile.size();
      std::string names;
      for (int const id : found.devices[s])
        names += stagger::text(names.empty() ? "" : " ", name_of(named, id));
      table.add({std::to_string(s), std::to_string(first) + " to " + std::to_string(last - 1),
                 profile.layers[static_cast<std::size_t>(first)].name.substr(0, 32), names,
                 report::format_seconds(found.stage_s[s], 4),
                 report::format_bytes(static_cast<double>(found.memory_bytes[s]))});
    }
    std::string text = table.str();
    text += "\nslowest stage " + report::format_seconds(found.bottleneck_s, 4);
    text += found.gap() > 1e-9
                ? ", at most " + report::format_percent(found.gap()) + " above the best there is\n"
                : ", the best there is\n";
    return text;
  }

  ModelAndCluster model_{};
  std::string devices_{};
  partition::Named policy_{.name = std::string(min_max)};
  Flag in_flight_flag_{};
};

Registered<Partition> const partition_registered{5, "partition",
                                                 "Cut a model for devices of a cluster"};

}  // namespace

}  // namespace tool
