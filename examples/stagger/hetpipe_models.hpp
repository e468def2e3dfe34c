// SPDX-License-Identifier: Apache-2.0
#pragma once
// HetPipe's two models, computed from their shapes, on its four kinds of GPU.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <stagger/cluster/presets.hpp>
#include <stagger/cluster/profile.hpp>
#include <stagger/partition/min_max.hpp>

namespace tool::hetpipe {

using stagger::cluster::Cluster;
using stagger::cluster::Profile;

inline constexpr int batch = 32;

/// Builds a profile from layers of images, with floats of four bytes.
class Model {
 public:
  /// @param utilisation  fraction of a TITAN V's 14.9 TFLOPS that the layers reach
  Model(std::string name, double utilisation)
      : profile_{.name = std::move(name), .batch = batch, .device = "V", .layers = {}},
        rate_(14.9e12 * utilisation) {}

  /// @param parameters  number of parameters
  /// @param operations  multiply-adds for one image
  /// @param outputs     floats of its output, for one image
  /// @param kept        floats kept for its backward pass, for one image
  void add(std::string name, double parameters, double operations, double outputs, double kept) {
    double const forward = 2 * operations * batch / rate_;
    profile_.layers.push_back({.name = std::move(name),
                               .forward_s = forward,
                               .backward_s = 2 * forward,
                               .activation_bytes = static_cast<std::uint64_t>(4 * batch * outputs),
                               .parameter_bytes = static_cast<std::uint64_t>(4 * parameters),
                               .stash_bytes = static_cast<std::uint64_t>(4 * batch * kept)});
  }

  [[nodiscard]] Profile const& profile() const { return profile_; }

 private:
  Profile profile_;
  double rate_;
};

/// VGG-19: 16 convolutions, 5 pooling layers and 3 dense layers. The outputs of a convolution and
/// of its activation function are kept for backward.
[[nodiscard]] inline Profile vgg19() {
  Model m("VGG-19", 0.55);
  double in = 3, height = 224;
  auto const group = [&](double out, int convolutions) {
    for (int c = 0; c < convolutions; ++c, in = out) {
      double const outputs = out * height * height;
      m.add("conv3-" + std::to_string(static_cast<int>(out)), in * out * 9 + out, in * 9 * outputs,
            outputs, 2 * outputs);
    }
    height /= 2;
    m.add("pool", 0, 0, in * height * height, in * height * height);
  };
  group(64, 2);
  group(128, 2);
  group(256, 4);
  group(512, 4);
  group(512, 4);
  m.add("fc6", 25088 * 4096 + 4096, 25088 * 4096, 4096, 4096);
  m.add("fc7", 4096 * 4096 + 4096, 4096 * 4096, 4096, 4096);
  m.add("fc8", 4096 * 1000 + 1000, 4096 * 1000, 1000, 1000);
  return m.profile();
}

/// ResNet-152: the first convolution with its pooling, 50 blocks, and the dense layer. The outputs
/// of a convolution and of its normalisation are kept for backward; the last one of a block is the
/// next block's input.
[[nodiscard]] inline Profile resnet152() {
  Model m("ResNet-152", 0.33);
  auto const convolution = [](double in, double out, double kernel) {
    return in * out * kernel * kernel + 2 * out;  // plus scale and shift of the normalisation
  };
  m.add("stem", convolution(3, 64, 7), 3 * 64 * 49 * 112.0 * 112, 64 * 56.0 * 56,
        2 * 64 * 112.0 * 112);
  double in = 64, height = 56;
  auto const blocks = [&](double width, int count) {
    for (int b = 0; b < count; ++b) {
      bool const first = b == 0;
      double const before = first && width > 64 ? 2 * height : height;
      double const out = 4 * width, small = height * height, large = before * before;
      double parameters =
          convolution(in, width, 1) + convolution(width, width, 3) + convolution(width, out, 1);
      double operations = in * width * large + width * width * 9 * small + width * out * small;
      double kept = 2 * (width * large + width * small) + out * small;
      if (first) {
        parameters += convolution(in, out, 1);
        operations += in * out * small;
        kept += out * small;
      }
      m.add("block" + std::to_string(static_cast<int>(out)), parameters, operations, out * small,
            kept);
      in = out;
    }
  };
  blocks(64, 3);
  height = 28;
  blocks(128, 8);
  height = 14;
  blocks(256, 36);
  height = 7;
  blocks(512, 3);
  m.add("fc", 2048 * 1000 + 1000, 2048 * 1000, 1000, 2048);
  return m.profile();
}

/// HetPipe's cluster, with nine tenths of each device's memory usable.
[[nodiscard]] inline Cluster usable() {
  Cluster cluster = stagger::cluster::hetpipe();
  for (auto& device : cluster.devices) device.memory_bytes = device.memory_bytes / 10 * 9;
  return cluster;
}

/// The same with what a parameter server may get of the 56 Gbit/s between nodes, which is not
/// published: from 1.85 to 2 GB/s the order of HetPipe's figure 4 comes out.
[[nodiscard]] inline Cluster with_servers() {
  Cluster cluster = usable();
  cluster.inter.bytes_per_s = 1.9e9;
  return cluster;
}

/// Devices of the nodes that the letters V, R, G, Q name. There is one virtual worker for each
/// device of a node, or a single one if only one node is named.
[[nodiscard]] inline std::vector<std::vector<int>> workers_of(Cluster const& cluster,
                                                              std::string_view kinds) {
  std::vector<std::vector<int>> workers(kinds.size() == 1 ? 1 : 4);
  for (char const kind : kinds) {
    std::size_t next = 0;
    for (int d = 0; d < cluster.size(); ++d)
      if (cluster.device(d).kind == std::string(1, kind))
        workers[next++ % workers.size()].push_back(d);
  }
  return workers;
}

/// Seconds of the slowest stage of a worker's best pipeline; infinity if none fits.
[[nodiscard]] inline double slowest_stage(Profile const& profile, Cluster const& cluster,
                                          std::vector<int> const& worker, int in_flight) {
  stagger::partition::MinMax const policy{.any_order = true, .in_flight = in_flight};
  try {
    return policy.partition(stagger::partition::costs(profile, cluster, worker)).bottleneck_s;
  } catch (stagger::partition::DoesNotFit const&) {
    return std::numeric_limits<double>::infinity();
  }
}

/// Images per second of all workers, which run at the speed of the slowest, before losses to the
/// schedule and to parameter servers. Zero if a worker's memory does not allow so many in flight.
[[nodiscard]] inline double throughput(Profile const& profile, Cluster const& cluster,
                                       std::vector<std::vector<int>> const& workers,
                                       int in_flight) {
  double slowest = 0;
  for (auto const& worker : workers)
    slowest = std::max(slowest, slowest_stage(profile, cluster, worker, in_flight));
  return static_cast<double>(workers.size()) * batch / slowest;
}

/// The most minibatches in flight for which every worker has memory, at most 32.
[[nodiscard]] inline int most_in_flight(Profile const& profile, Cluster const& cluster,
                                        std::vector<std::vector<int>> const& workers) {
  int n = 0;
  while (n < 32 && throughput(profile, cluster, workers, n + 1) > 0) ++n;
  return n;
}

}  // namespace tool::hetpipe
