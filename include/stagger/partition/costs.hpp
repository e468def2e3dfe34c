// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Costs of a chain of layers on a set of devices, and the costs of partitions.
/// @source J. H. Park et al., "HetPipe: Enabling Large DNN Training on (Whimpy) Heterogeneous GPU
///         Clusters through Integration of Pipelined Model Parallelism and Data Parallelism",
///         USENIX ATC 2020, section 7.

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <stagger/cluster/cluster.hpp>
#include <stagger/cluster/profile.hpp>
#include <stagger/core/error.hpp>

namespace stagger::partition {

/// The properties of a device that matter to a partitioner.
struct Place {
  int times = 0;  ///< row of Costs::until_s
  int node = 0;
  double memory_bytes = 0;
  int id = 0;  ///< number in its cluster
  friend constexpr bool operator==(Place const&, Place const&) = default;

  /// True if a partition is as good with the two devices exchanged.
  [[nodiscard]] constexpr bool alike(Place const& other) const noexcept {
    return times == other.times && node == other.node && memory_bytes == other.memory_bytes;
  }
};

namespace detail {

/// The number of a layer, stage or device as an index of a vector.
[[nodiscard]] constexpr std::size_t at(int i) noexcept { return static_cast<std::size_t>(i); }

}  // namespace detail

/// The costs of a chain of layers on some devices. It has no names, so that small models can be cut
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
  /// Copies of its parameters that a stage has in memory; 0: its weights, their accumulated update
  /// and a version for each minibatch it holds.
  double parameter_copies = 0;

  [[nodiscard]] constexpr int layers() const noexcept {
    return static_cast<int>(boundary_bytes.size()) - 1;
  }
  [[nodiscard]] constexpr int devices() const noexcept { return static_cast<int>(places.size()); }

  /// Seconds of the layers [first, last) on a device, without transfers.
  [[nodiscard]] constexpr double compute_s(int device, int first, int last) const {
    auto const& row = until_s[detail::at(place(device).times)];
    return row[detail::at(last)] - row[detail::at(first)];
  }

  [[nodiscard]] constexpr Place const& place(int device) const {
    return places[detail::at(device)];
  }

  [[nodiscard]] constexpr cluster::Link const& inside(int node) const {
    return intra[detail::at(node)];
  }

  /// Seconds to send the activations in front of `layer` from one device to another.
  [[nodiscard]] constexpr double receive_s(int from, int to, int layer) const {
    int const node = place(to).node;
    cluster::Link const& link = place(from).node == node ? inside(node) : inter;
    return link.transfer_s(boundary_bytes[detail::at(layer)]);
  }

  /// Bytes of the parameters of the layers [first, last), one copy.
  [[nodiscard]] constexpr double parameter_bytes(int first, int last) const {
    return parameter_bytes_until[detail::at(last)] - parameter_bytes_until[detail::at(first)];
  }

  /// Bytes that the layers [first, last) need as one of `stages` stages: copies of their
  /// parameters, what minibatches in flight keep for their backward, and what waits in front of the
  /// last stage. That stage runs forward and backward at once and holds one minibatch, any other
  /// may hold all.
  /// @param in_flight  minibatches in the whole pipeline
  [[nodiscard]] constexpr double memory_bytes(int first, int last, int stage, int stages,
                                              int in_flight) const {
    bool const ends = stage == stages - 1;
    int const held = ends ? 1 : in_flight;
    double const stash = stash_bytes_until[detail::at(last)] - stash_bytes_until[detail::at(first)];
    double const waiting =
        ends && stage > 0 ? (in_flight - 1) * boundary_bytes[detail::at(first)] : 0;
    double const copies = parameter_copies > 0 ? parameter_copies : 2 + held;
    return parameter_bytes(first, last) * copies + stash * held + waiting;
  }
};

/// Cuts and their costs.
struct Partition {
  std::vector<int> cuts{};                    ///< [stages - 1] first layer of each stage after the
                                              ///< first
  std::vector<std::vector<int>> devices{};    ///< [stages] ids in the cluster; several are replicas
  std::vector<double> stage_s{};              ///< [stages] compute and transfers, per minibatch
  std::vector<std::uint64_t> memory_bytes{};  ///< [stages] of each device
  double bottleneck_s = 0;                    ///< largest of stage_s
  double lower_bound_s = 0;  ///< no such partition is faster; the bottleneck if it is optimal

  [[nodiscard]] constexpr int stages() const noexcept { return static_cast<int>(devices.size()); }
  /// bottleneck_s over lower_bound_s, less one.
  [[nodiscard]] constexpr double gap() const noexcept {
    return lower_bound_s > 0 ? bottleneck_s / lower_bound_s - 1 : 0;
  }
};

/// A partitioner by cost.
template <class P>
concept CostPolicy = std::copyable<P> && requires(P const policy, Costs const& costs) {
  { policy.partition(costs) } -> std::same_as<Partition>;
};

namespace detail {

/// Bytes for reports, as an integer; too large numbers become the largest one.
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

/// The devices in the order given, by their index.
[[nodiscard]] constexpr std::vector<int> given_order(Costs const& costs) {
  std::vector<int> order;
  for (int d = 0; d < costs.devices(); ++d) order.push_back(d);
  return order;
}

/// First layer of each stage, and after them the number of layers.
[[nodiscard]] constexpr std::vector<int> bounds_of(std::vector<int> const& cuts, int layers) {
  std::vector<int> bounds{0};
  bounds.insert(bounds.end(), cuts.begin(), cuts.end());
  bounds.push_back(layers);
  return bounds;
}

/// Seconds of a stage. They are added in the same order everywhere, so that equal stages compare
/// equal.
/// @param before, after devices of the neighbouring stages; -1: there is none
[[nodiscard]] constexpr double stage_seconds(Costs const& costs, int device, int first, int last,
                                             int before, int after) {
  double seconds = costs.compute_s(device, first, last);
  if (before >= 0) seconds += costs.receive_s(before, device, first);
  if (after >= 0) seconds += costs.receive_s(after, device, last);
  return seconds;
}

}  // namespace detail

/// The costs of cuts when stage s runs on the device order[s].
/// @param  cuts   [stages - 1] as in Partition
/// @param  order  [stages] indices of Costs::places
/// @throws Error  bad_configuration for cuts that do not rise, or devices that do not exist
[[nodiscard]] constexpr Partition judge(Costs const& costs, std::vector<int> const& cuts,
                                        std::span<int const> order, int in_flight = 1) {
  int const stages = static_cast<int>(order.size());
  detail::require_stages(stages, costs.layers());
  if (cuts.size() + 1 != order.size())
    raise(Errc::bad_configuration, cuts.size(), " cuts make ", counted(cuts.size() + 1, "stage"),
          ", but ", stages, " devices are given; give one for each stage");
  std::vector<int> const bounds = detail::bounds_of(cuts, costs.layers());
  Partition result{.cuts = cuts};
  for (std::size_t s = 0; s < order.size(); ++s) {
    int const stage = static_cast<int>(s), first = bounds[s], last = bounds[s + 1];
    if (first < 0 || first >= last || last > costs.layers() || order[s] < 0 ||
        order[s] >= costs.devices())
      raise(Errc::bad_configuration, "stage ", s, " would hold the layers from ", first,
            " to before ", last, " on device ", order[s], "; cuts must rise from 1 to ",
            costs.layers() - 1, " and devices be among the ", costs.devices(), " given");
    result.devices.push_back({costs.place(order[s]).id});
    result.stage_s.push_back(detail::stage_seconds(costs, order[s], first, last,
                                                   s == 0 ? -1 : order[s - 1],
                                                   s + 1 == order.size() ? -1 : order[s + 1]));
    result.memory_bytes.push_back(
        detail::whole_bytes(costs.memory_bytes(first, last, stage, stages, in_flight)));
    result.bottleneck_s = std::max(result.bottleneck_s, result.stage_s.back());
  }
  return result;
}

/// The costs of a profile on some devices of a cluster.
/// @param  devices  ids, in the order of the stages; none twice
/// @throws Error    bad_data for an invalid profile or cluster, bad_configuration for a device that
///                  does not exist or is listed twice
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
  for (int const id : devices) {
    bool const named = std::any_of(result.places.begin(), result.places.end(),
                                   [&](Place const& p) { return p.id == id; });
    if (id < 0 || id >= cluster.size() || named)
      raise(Errc::bad_configuration, "device ", id,
            " is not in the cluster or named twice; devices are numbered 0 to ",
            cluster.size() - 1);
    cluster::Device const& device = cluster.device(id);
    auto const same = std::find_if(shown.begin(), shown.end(), [&](int other) {
      return cluster.device(other).kind == device.kind &&
             cluster.device(other).speed == device.speed;
    });
    int const row = static_cast<int>(same - shown.begin());
    if (same == shown.end()) {
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
