// SPDX-License-Identifier: Apache-2.0
#pragma once
// Random models and clusters, and every partition of them, worked out from the profile alone.

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include <stagger/cluster/cluster.hpp>
#include <stagger/cluster/profile.hpp>

namespace partitions {

using stagger::cluster::Cluster;
using stagger::cluster::Profile;
using Random = std::mt19937_64;

inline double uniform(Random& random, double low, double high) {
  return std::uniform_real_distribution<>(low, high)(random);
}
inline int pick(Random& random, int low, int high) {
  return std::uniform_int_distribution<>(low, high)(random);
}

/// Layers of at most 1 s; whole numbers, so that ties are common, or not.
inline Profile model(Random& random, int layers, bool whole) {
  Profile p{.name = "random", .batch = 1, .device = "a", .layers = {}};
  auto const value = [&](double high) {
    return whole ? pick(random, 0, static_cast<int>(high)) : uniform(random, 0, high);
  };
  for (int l = 0; l < layers; ++l) {
    p.layers.push_back({.name = "l" + std::to_string(l),
                        .forward_s = value(4),
                        .backward_s = value(8),
                        .activation_bytes = static_cast<std::uint64_t>(pick(random, 0, 9)),
                        .parameter_bytes = static_cast<std::uint64_t>(pick(random, 0, 9))});
    if (pick(random, 0, 2) == 0) p.layers.back().stash_bytes = pick(random, 0, 20);
    if (pick(random, 0, 3) == 0) p.layers.back().by_device.push_back({"c", value(6), value(6), {}});
  }
  return p;
}

/// Devices of up to three kinds on up to three nodes.
inline Cluster devices(Random& random, int count, int least_memory, int most_memory) {
  Cluster c{.name = "random", .devices = {}, .intra = {}, .inter = {}};
  int const nodes = pick(random, 1, 3);
  c.inter = {.alpha_s = pick(random, 0, 1) * 0.5, .bytes_per_s = 1.0 * pick(random, 1, 4)};
  for (int n = 0; n < nodes; ++n)
    c.intra.push_back({.alpha_s = 0, .bytes_per_s = 4.0 * pick(random, 1, 4)});
  std::vector<double> const speeds{1, 2, uniform(random, 0.5, 2)};
  for (int d = 0; d < count; ++d) {
    int const kind = pick(random, 0, 2);
    c.devices.push_back(
        {.kind = std::string(1, static_cast<char>('a' + kind)),
         .memory_bytes = static_cast<std::uint64_t>(pick(random, least_memory, most_memory)),
         .speed = speeds[static_cast<std::size_t>(kind)],
         .node = d * nodes / count});
  }
  return c;
}

/// What one stage of a partition comes to, from the profile.
struct Stage {
  double seconds = 0, bytes = 0;
};

inline Stage stage(Profile const& p, Cluster const& c, std::vector<int> const& order,
                   std::vector<int> const& bounds, std::size_t s, int in_flight) {
  Stage result;
  auto const [first, last] = std::pair{bounds[s], bounds[s + 1]};
  auto const& device = c.device(order[s]);
  bool const end = s + 1 == order.size();
  int const held = end ? 1 : in_flight;
  for (int l = first; l < last; ++l) {
    auto const& layer = p.layers[static_cast<std::size_t>(l)];
    double forward = layer.forward_s / device.speed, backward = layer.backward_s / device.speed;
    for (auto const& d : layer.by_device)
      if (d.kind == device.kind) forward = d.forward_s, backward = d.backward_s;
    result.seconds += forward + backward;
    result.bytes += static_cast<double>(layer.parameter_bytes) * (2 + held) +
                    static_cast<double>(layer.stash_bytes.value_or(layer.activation_bytes)) * held;
  }
  auto const crossing = [&](int l) {
    return static_cast<double>(p.layers[static_cast<std::size_t>(l) - 1].activation_bytes);
  };
  auto const receive = [&](int from, double bytes) {
    auto const& link = c.device(from).node == device.node
                           ? c.intra[static_cast<std::size_t>(device.node)]
                           : c.inter;
    return link.alpha_s + bytes / link.bytes_per_s;
  };
  if (s > 0) result.seconds += receive(order[s - 1], crossing(first));
  if (!end) result.seconds += receive(order[s + 1], crossing(last));
  if (end && s > 0) result.bytes += (in_flight - 1) * crossing(first);
  return result;
}

/// Slowest stage; infinity if some stage does not fit.
inline double bottleneck(Profile const& p, Cluster const& c, std::vector<int> const& order,
                         std::vector<int> const& bounds, int in_flight) {
  double worst = 0;
  for (std::size_t s = 0; s < order.size(); ++s) {
    Stage const x = stage(p, c, order, bounds, s, in_flight);
    if (x.bytes > static_cast<double>(c.device(order[s]).memory_bytes))
      return std::numeric_limits<double>::infinity();
    worst = std::max(worst, x.seconds);
  }
  return worst;
}

/// Calls use(bounds) for every way to cut layers into stages; bounds begin with 0.
template <class Use> void every_cut(int layers, int stages, Use&& use) {
  std::vector<int> bounds(static_cast<std::size_t>(stages) + 1, layers);
  auto const go = [&](auto& self, int s, int from) -> void {
    bounds[static_cast<std::size_t>(s)] = from;
    if (s == stages - 1) return use(bounds);
    for (int next = from + 1; next <= layers - (stages - 1 - s); ++next) self(self, s + 1, next);
  };
  go(go, 0, 0);
}

/// Calls use(order) for every order of `count` of the devices 0 to all - 1.
template <class Use> void every_order(int all, int count, Use&& use) {
  std::vector<int> order;
  auto const go = [&](auto& self) -> void {
    if (static_cast<int>(order.size()) == count) return use(order);
    for (int d = 0; d < all; ++d) {
      if (std::find(order.begin(), order.end(), d) != order.end()) continue;
      order.push_back(d);
      self(self);
      order.pop_back();
    }
  };
  go(go);
}

inline std::vector<int> numbered(int count) {
  std::vector<int> ids(static_cast<std::size_t>(count));
  std::iota(ids.begin(), ids.end(), 0);
  return ids;
}

}  // namespace partitions
