// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   What a partitioner weighs: a chain of layers on a set of devices, as numbers alone.
/// @source J. H. Park et al., "HetPipe: Enabling Large DNN Training on (Whimpy) Heterogeneous GPU
///         Clusters through Integration of Pipelined Model Parallelism and Data Parallelism",
///         USENIX ATC 2020, section 7.

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include <stagger/cluster/cluster.hpp>
#include <stagger/cluster/profile.hpp>
#include <stagger/core/error.hpp>

namespace stagger::partition {

/// How many minibatches a stage may hold between their forward and their backward. The last stage
/// runs both at once and holds one.
enum class InFlight : std::uint8_t {
  safe,      ///< all of them: always right
  balanced,  ///< min(all, 2 * stages after it + 1): right only if the schedule keeps to it
};

/// One device, by what a partitioner looks at.
struct Place {
  int times = 0;  ///< row of Costs::until_s
  int node = 0;
  double memory_bytes = 0;
  int id = 0;  ///< in its cluster
  friend constexpr bool operator==(Place const&, Place const&) = default;
};

/// A chain of layers and the devices it is cut for. Holds no names, so that small models can be cut
/// in a constant expression.
struct Costs {
  std::vector<std::vector<double>> until_s{};   ///< [rows][layers + 1] forward and backward seconds
                                                ///< of all layers before
  std::vector<double> parameter_bytes_until{};  ///< [layers + 1]
  std::vector<double> stash_bytes_until{};      ///< [layers + 1]
  std::vector<double> boundary_bytes{};         ///< [layers + 1] crossing in front of a layer
  std::vector<Place> places{};                  ///< [devices], in the order given
  std::vector<cluster::Link> intra{};           ///< [nodes]
  cluster::Link inter{};

  [[nodiscard]] constexpr int layers() const noexcept {
    return static_cast<int>(boundary_bytes.size()) - 1;
  }
  [[nodiscard]] constexpr int devices() const noexcept { return static_cast<int>(places.size()); }

  /// Seconds of the layers [first, last) on a device, without transfers.
  [[nodiscard]] constexpr double compute_s(int device, int first, int last) const {
    auto const& row = until_s[static_cast<std::size_t>(place(device).times)];
    return row[static_cast<std::size_t>(last)] - row[static_cast<std::size_t>(first)];
  }

  [[nodiscard]] constexpr Place const& place(int device) const {
    return places[static_cast<std::size_t>(device)];
  }

  /// Seconds to receive what crosses in front of `layer`, from one device on another.
  [[nodiscard]] constexpr double receive_s(int from, int to, int layer) const {
    int const node = place(to).node;
    cluster::Link const& link =
        place(from).node == node ? intra[static_cast<std::size_t>(node)] : inter;
    return link.transfer_s(boundary_bytes[static_cast<std::size_t>(layer)]);
  }

  /// Bytes that a stage of the layers [first, last) needs: its weights, their accumulated update
  /// and one version for each minibatch in flight, what those keep for their backward, and for the
  /// last stage what waits in front of it.
  /// @param only       whether there is no other stage
  /// @param held       minibatches between forward and backward here
  /// @param in_flight  of the whole pipeline
  [[nodiscard]] constexpr double memory_bytes(int first, int last, bool only, bool is_last,
                                              int held, int in_flight) const {
    auto const at = [](std::vector<double> const& v, int i) {
      return v[static_cast<std::size_t>(i)];
    };
    double const parameters = at(parameter_bytes_until, last) - at(parameter_bytes_until, first);
    double const stash = at(stash_bytes_until, last) - at(stash_bytes_until, first);
    double const waiting = is_last && !only ? (in_flight - 1) * at(boundary_bytes, first) : 0;
    return parameters * (2 + held) + stash * held + waiting;
  }
};

/// Minibatches a stage holds at most, by rule.
[[nodiscard]] constexpr int held_in_flight(InFlight rule, int stage, int stages, int in_flight) {
  if (stage == stages - 1) return 1;
  if (rule == InFlight::safe) return in_flight;
  return std::min(in_flight, 2 * (stages - 1 - stage) + 1);
}

/// Cuts, and what they come to.
struct Partition {
  std::vector<int> cuts{};                    ///< [stages - 1] first layer of each stage after the
                                              ///< first
  std::vector<std::vector<int>> devices{};    ///< [stages] ids in the cluster; several are replicas
  std::vector<double> stage_s{};              ///< [stages] compute and transfers, per minibatch
  std::vector<std::uint64_t> memory_bytes{};  ///< [stages] of each device
  double bottleneck_s = 0;                    ///< largest of stage_s
  double lower_bound_s = 0;  ///< nothing of this kind is faster; the bottleneck where exact

  [[nodiscard]] constexpr int stages() const noexcept { return static_cast<int>(devices.size()); }
  /// bottleneck_s over lower_bound_s, less one.
  [[nodiscard]] constexpr double gap() const noexcept {
    return lower_bound_s > 0 ? bottleneck_s / lower_bound_s - 1 : 0;
  }
};

/// A policy that cuts by cost.
template <class P>
concept CostPolicy = std::copyable<P> && requires(P const policy, Costs const& costs) {
  { policy.partition(costs) } -> std::same_as<Partition>;
};

namespace detail {

/// Bytes as reported: whole, and as many as fit.
[[nodiscard]] constexpr std::uint64_t whole_bytes(double bytes) noexcept {
  return bytes < 1.8e19 ? static_cast<std::uint64_t>(bytes) : std::uint64_t(18e18);
}

constexpr void require_in_flight(int in_flight) {
  if (in_flight < 1)
    raise(Errc::bad_configuration, in_flight, " minibatches in flight cannot run; use 1 or more");
}

constexpr void require_stages(int stages, int layers) {
  if (stages < 1) raise(Errc::bad_configuration, "no device is given; a partition needs 1 or more");
  if (stages > layers)
    raise(Errc::bad_configuration, counted(stages, "stage"), " cannot be made of ",
          counted(layers, "layer"), "; use 1 to ", layers);
}

/// A stage's seconds. Everywhere summed in this order, so that equal stages compare equal.
/// @param before, after  devices of the neighbours, -1 where there is none
[[nodiscard]] constexpr double stage_seconds(Costs const& costs, int device, int first, int last,
                                             int before, int after) {
  double seconds = costs.compute_s(device, first, last);
  if (before >= 0) seconds += costs.receive_s(before, device, first);
  if (after >= 0) seconds += costs.receive_s(after, device, last);
  return seconds;
}

}  // namespace detail

/// What cuts come to when stage s runs on the device order[s].
/// @param  cuts   [stages - 1] as of Partition
/// @param  order  [stages] indices of Costs::places
/// @throws Error  bad_configuration for cuts that do not rise or devices that are not there
[[nodiscard]] constexpr Partition judge(Costs const& costs, std::vector<int> const& cuts,
                                        std::span<int const> order, InFlight rule = InFlight::safe,
                                        int in_flight = 1) {
  int const stages = static_cast<int>(order.size());
  detail::require_stages(stages, costs.layers());
  if (cuts.size() + 1 != order.size())
    raise(Errc::bad_configuration, cuts.size(), " cuts make ", counted(cuts.size() + 1, "stage"),
          ", but ", stages, " devices", " are given; give one for each stage");
  Partition result{.cuts = cuts};
  for (int s = 0; s < stages; ++s) {
    auto const u = static_cast<std::size_t>(s);
    int const first = s == 0 ? 0 : cuts[u - 1];
    int const last = s == stages - 1 ? costs.layers() : cuts[u];
    if (first < 0 || first >= last || last > costs.layers() || order[u] < 0 ||
        order[u] >= costs.devices())
      raise(Errc::bad_configuration, "stage ", s, " would hold the layers from ", first,
            " to before ", last, " on device ", order[u], "; cuts must rise from 1 to ",
            costs.layers() - 1, " and devices be among the ", costs.devices(), " given");
    result.devices.push_back({costs.place(order[u]).id});
    result.stage_s.push_back(detail::stage_seconds(costs, order[u], first, last,
                                                   s == 0 ? -1 : order[u - 1],
                                                   s == stages - 1 ? -1 : order[u + 1]));
    result.memory_bytes.push_back(detail::whole_bytes(
        costs.memory_bytes(first, last, stages == 1, s == stages - 1,
                           held_in_flight(rule, s, stages, in_flight), in_flight)));
    result.bottleneck_s = std::max(result.bottleneck_s, result.stage_s.back());
  }
  return result;
}

/// What cutting a profile for some devices of a cluster has to weigh.
/// @param  devices  ids, in the order of the stages; none twice
/// @throws Error    bad_data for a bad profile or cluster, bad_configuration for a device that is
///                  not there, or there twice
[[nodiscard]] constexpr Costs costs(cluster::Profile const& profile,
                                    cluster::Cluster const& cluster, std::span<int const> devices) {
  require_profile(profile);
  require_cluster(cluster);
  Costs result;
  result.intra = cluster.intra;
  result.inter = cluster.inter;
  std::size_t const n = profile.layers.size();
  result.parameter_bytes_until.assign(n + 1, 0);
  result.stash_bytes_until.assign(n + 1, 0);
  result.boundary_bytes.assign(n + 1, 0);
  for (std::size_t l = 0; l < n; ++l) {
    cluster::Layer const& layer = profile.layers[l];
    auto const sum = [&](std::vector<double>& v, std::uint64_t bytes) {
      v[l + 1] = v[l] + static_cast<double>(bytes);
    };
    sum(result.parameter_bytes_until, layer.parameter_bytes);
    sum(result.stash_bytes_until, layer.stash());
    result.boundary_bytes[l + 1] = static_cast<double>(layer.activation_bytes);
  }
  std::vector<int> shown;  // a device of each row
  for (std::size_t i = 0; i < devices.size(); ++i) {
    int const id = devices[i];
    bool const there = id >= 0 && id < cluster.size() &&
                       std::find(devices.begin(), devices.begin() + static_cast<std::ptrdiff_t>(i),
                                 id) == devices.begin() + static_cast<std::ptrdiff_t>(i);
    if (!there)
      raise(Errc::bad_configuration, "device ", id,
            " is not in the cluster or named twice; "
            "devices are numbered 0 to ",
            cluster.size() - 1);
    cluster::Device const& device = cluster.device(id);
    int row = 0;
    for (; row < static_cast<int>(shown.size()); ++row) {
      cluster::Device const& other = cluster.device(shown[static_cast<std::size_t>(row)]);
      if (other.kind == device.kind && other.speed == device.speed) break;
    }
    if (row == static_cast<int>(shown.size())) {
      shown.push_back(id);
      std::vector<double> until(n + 1, 0);
      for (std::size_t l = 0; l < n; ++l)
        until[l + 1] = until[l] + cluster.times(profile.layers[l], id).total_s();
      result.until_s.push_back(std::move(until));
    }
    result.places.push_back({.times = row,
                             .node = device.node,
                             .memory_bytes = static_cast<double>(device.memory_bytes),
                             .id = id});
  }
  return result;
}

}  // namespace stagger::partition
