// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Clusters as JSON files.

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include <stagger/cluster/cluster.hpp>
#include <stagger/core/error.hpp>
#include <stagger/json/document.hpp>

namespace stagger::json {

namespace detail {

/// A link; its all-reduce rate is a number, or a list indexed by the number of devices.
[[nodiscard]] inline cluster::Link read_link(Field const& field) {
  cluster::Link link{.alpha_s = field.at("alpha_s").number(),
                     .bytes_per_s = field.at("bytes_per_s").positive()};
  if (!field.has("all_reduce_bytes_per_s")) return link;
  Field const rates = field.at("all_reduce_bytes_per_s");
  if (!rates.value().is_array()) {
    link.all_reduce_bytes_per_s = {rates.positive()};
    return link;
  }
  std::vector<Field> const each = rates.elements();
  if (each.size() < 3) rates.refuse("; a list has an entry for 0, 1, 2 and more devices");
  for (std::size_t r = 0; r < each.size(); ++r)  // there is no all-reduce among fewer than two
    link.all_reduce_bytes_per_s.push_back(r < 2 ? 0 : each[r].positive());
  return link;
}

[[nodiscard]] inline Value written(cluster::Link const& link) {
  Value out = {{"alpha_s", link.alpha_s}, {"bytes_per_s", link.bytes_per_s}};
  auto const& rates = link.all_reduce_bytes_per_s;
  if (rates.size() == 1) out["all_reduce_bytes_per_s"] = rates.front();
  if (rates.size() > 1) out["all_reduce_bytes_per_s"] = rates;
  return out;
}

}  // namespace detail

/// Reads `{"name", "nodes": [{"count", "devices": [{"count", "kind", "memory_bytes", "speed"}],
/// "intra": LINK}], "inter": LINK}`, LINK = `{"alpha_s", "bytes_per_s",
/// "all_reduce_bytes_per_s"}`. "intra" may be missing in a node of one device, "inter" where there
/// is one node; an all-reduce rate left out is the link's own.
/// @param  source  the name of the file in error messages
/// @throws Error   bad_data naming file, line, field and value
[[nodiscard]] inline cluster::Cluster read_cluster(std::string text, std::string source) {
  constexpr int most = 4096;  // devices; a larger number is more likely a typing error
  Field const file = Field::parse(std::move(text), std::move(source));
  cluster::Cluster result;
  if (file.has("name")) result.name = file.at("name").string();
  for (Field const& node : file.at("nodes").elements()) {
    std::vector<cluster::Device> devices;
    for (Field const& group : node.at("devices").elements()) {
      cluster::Device const device{.kind = group.at("kind").string(),
                                   .memory_bytes = group.at("memory_bytes").bytes(),
                                   .speed = group.at("speed").positive()};
      if (device.memory_bytes == 0) group.at("memory_bytes").refuse("; give its bytes");
      for (int left = group.at("count").integer(1, most); left > 0; --left)
        devices.push_back(device);
    }
    if (devices.empty()) node.at("devices").refuse("; a node has one device or more");
    bool const alone = devices.size() == 1 && !node.has("intra");
    cluster::Link const intra = alone ? cluster::Link{} : detail::read_link(node.at("intra"));
    int const count = node.at("count").integer(1, most);
    if (result.size() + static_cast<long long>(devices.size()) * count > most)
      node.at("count").refuse(stagger::text("; a cluster has at most ", most, " devices"));
    for (int n = 0; n < count; ++n) {
      for (cluster::Device& device : devices) device.node = result.nodes();
      result.devices.insert(result.devices.end(), devices.begin(), devices.end());
      result.intra.push_back(intra);
    }
  }
  if (result.devices.empty()) file.at("nodes").refuse("; give one node or more");
  if (result.nodes() > 1 || file.has("inter")) result.inter = detail::read_link(file.at("inter"));
  return result;
}

/// The cluster in the format of `read_cluster`, one node on each line.
[[nodiscard]] inline std::string write_cluster(cluster::Cluster const& cluster) {
  cluster::require_cluster(cluster);
  std::string out = "{\"name\": " + detail::line_of_json(cluster.name) + ", \"nodes\": [";
  for (int n = 0; n < cluster.nodes(); ++n) {
    Value devices = Value::array();
    for (int const id : cluster.devices_of(n)) {
      cluster::Device const& d = cluster.device(id);
      if (!devices.empty() && devices.back()["kind"] == d.kind &&
          devices.back()["memory_bytes"] == d.memory_bytes && devices.back()["speed"] == d.speed) {
        devices.back()["count"] = devices.back()["count"].get<int>() + 1;
        continue;
      }
      devices.push_back(
          {{"count", 1}, {"kind", d.kind}, {"memory_bytes", d.memory_bytes}, {"speed", d.speed}});
    }
    Value const line = {
        {"count", 1}, {"devices", devices}, {"intra", detail::written(cluster.inside(n))}};
    out += text(n == 0 ? "\n  " : ",\n  ", detail::line_of_json(line));
  }
  return out + "\n],\n\"inter\": " + detail::line_of_json(detail::written(cluster.inter)) + "}\n";
}

}  // namespace stagger::json
