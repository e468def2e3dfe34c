// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Clusters: devices, the nodes that hold them, and the links between them.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <stagger/cluster/profile.hpp>
#include <stagger/core/error.hpp>
#include <stagger/core/math.hpp>

namespace stagger::cluster {

/// The costs of sending bytes between two devices, and of an all-reduce over several.
struct Link {
  double alpha_s = 0;                            ///< start-up of one message
  double bytes_per_s = 1e9;                      ///< > 0
  std::vector<double> all_reduce_bytes_per_s{};  ///< empty: as bytes_per_s; one element:
                                                 ///< for any number of devices; otherwise [r]
                                                 ///< for r devices, the last one for more

  [[nodiscard]] constexpr double transfer_s(double bytes) const noexcept {
    return alpha_s + bytes / bytes_per_s;
  }

  /// Rate of an all-reduce over r devices.
  [[nodiscard]] constexpr double all_reduce_rate(int r) const noexcept {
    if (all_reduce_bytes_per_s.empty()) return bytes_per_s;
    std::size_t const last = all_reduce_bytes_per_s.size() - 1;
    return all_reduce_bytes_per_s[std::min(static_cast<std::size_t>(r), last)];
  }

  /// Seconds of an all-reduce of `bytes` over r devices: 2(r-1) alpha + 2(r-1)/r bytes / rate;
  /// 0 without bytes, or for a single device.
  [[nodiscard]] constexpr double all_reduce_s(int r, double bytes) const noexcept {
    if (r < 2 || !(bytes > 0)) return 0;
    return 2 * (r - 1) * alpha_s + 2.0 * (r - 1) / r * bytes / all_reduce_rate(r);
  }

  friend constexpr bool operator==(Link const&, Link const&) = default;
};

struct Device {
  std::string kind{};              ///< as profiles name it
  std::uint64_t memory_bytes = 0;  ///< that a plan may use
  double speed = 1;                ///< times of a profile are divided by it
  int node = 0;
  friend constexpr bool operator==(Device const&, Device const&) = default;
};

/// Devices, numbered node by node, and their links.
struct Cluster {
  std::string name{};
  std::vector<Device> devices{};
  std::vector<Link> intra{};  ///< [nodes] inside each node
  Link inter{};               ///< between any two nodes

  [[nodiscard]] constexpr int size() const noexcept { return static_cast<int>(devices.size()); }
  [[nodiscard]] constexpr int nodes() const noexcept { return static_cast<int>(intra.size()); }
  [[nodiscard]] constexpr Device const& device(int id) const {
    return devices[static_cast<std::size_t>(id)];
  }

  [[nodiscard]] constexpr Link const& inside(int node) const {
    return intra[static_cast<std::size_t>(node)];
  }

  /// The link between two devices: their node's, or the one between nodes.
  [[nodiscard]] constexpr Link const& link(int a, int b) const {
    return device(a).node == device(b).node ? inside(device(a).node) : inter;
  }

  /// Seconds to receive `bytes` on one device from another; 0 if both are the same.
  [[nodiscard]] constexpr double transfer_s(int from, int to, double bytes) const {
    return from == to ? 0 : link(from, to).transfer_s(bytes);
  }

  /// The link that joins some devices, one or more: their node's or, where they stand in several,
  /// the one between nodes.
  [[nodiscard]] constexpr Link const& link_among(std::span<int const> ids) const {
    int const node = device(ids.front()).node;
    bool const one =
        std::all_of(ids.begin(), ids.end(), [&](int id) { return device(id).node == node; });
    return one ? inside(node) : inter;
  }

  /// Seconds of an all-reduce of `bytes` over the devices, on the link that joins them.
  [[nodiscard]] constexpr double all_reduce_s(std::span<int const> ids, double bytes) const {
    if (ids.size() < 2) return 0;
    return link_among(ids).all_reduce_s(static_cast<int>(ids.size()), bytes);
  }

  /// Devices of one node, rising.
  [[nodiscard]] constexpr std::vector<int> devices_of(int node) const {
    std::vector<int> ids;
    for (int d = 0; d < size(); ++d)
      if (device(d).node == node) ids.push_back(d);
    return ids;
  }

  /// Times of a layer on a device, for one batch of its profile.
  [[nodiscard]] constexpr Times times(Layer const& layer, int id) const {
    return layer.on(device(id).kind, device(id).speed);
  }

  friend constexpr bool operator==(Cluster const&, Cluster const&) = default;
};

namespace detail {

constexpr void require_link(Link const& link, std::string const& where) {
  if (!stagger::detail::math::finite_and_not_negative(link.alpha_s))
    raise(Errc::bad_data, where, " has alpha_s = ", link.alpha_s,
          "; give a finite number of seconds that is not negative");
  auto const rate = [&](char const* field, double value) {
    if (!stagger::detail::math::finite_and_not_negative(value) || !(value > 0))
      raise(Errc::bad_data, where, " has ", field, " = ", value,
            ", so that nothing can be reached over it; give a finite number above 0");
  };
  rate("bytes_per_s", link.bytes_per_s);
  auto const& rates = link.all_reduce_bytes_per_s;
  if (rates.size() == 2)
    raise(Errc::bad_data, where,
          " has all_reduce_bytes_per_s for 0 and 1 devices only; give one rate for any number of "
          "them, or a list that goes on with 2");
  for (std::size_t r = rates.size() == 1 ? 0 : 2; r < rates.size(); ++r)
    rate("all_reduce_bytes_per_s", rates[r]);
}

}  // namespace detail

/// Checks a cluster.
/// @throws Error  bad_data naming the device, node or link, the field and its value
constexpr void require_cluster(Cluster const& cluster) {
  if (cluster.devices.empty())
    raise(Errc::bad_data, "the cluster has no devices; give one or more");
  int before = 0;
  for (int d = 0; d < cluster.size(); ++d) {
    Device const& device = cluster.device(d);
    auto const refuse = [&](char const* field, double value, char const* remedy) {
      raise(Errc::bad_data, "device ", d, " ('", device.kind, "') has ", field, " = ", value,
            remedy);
    };
    if (!stagger::detail::math::finite_and_not_negative(device.speed) || !(device.speed > 0))
      refuse("speed", device.speed, "; give a finite number above 0");
    if (device.memory_bytes == 0) refuse("memory_bytes", 0, "; give a number above 0");
    if (device.node < before || device.node >= cluster.nodes())
      refuse("node", device.node,
             "; number nodes from 0, give each a link, and list the devices node by node");
    before = device.node;
  }
  for (int n = 0; n < cluster.nodes(); ++n)
    detail::require_link(cluster.inside(n), text("the link inside node ", n));
  if (cluster.nodes() > 1) detail::require_link(cluster.inter, "the link between nodes");
}

}  // namespace stagger::cluster
