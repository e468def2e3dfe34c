// SPDX-License-Identifier: Apache-2.0
#pragma once
// The models of DAPPLE's evaluation, built from layer times, sizes and counts that the paper and
// its authors state; none of them was measured here. The tests use this file too.

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <stagger/cluster/profile.hpp>
#include <stagger/core/error.hpp>

namespace dapple_models {

using stagger::cluster::Layer;
using stagger::cluster::Profile;

inline Layer layer(std::string name, double forward_ms, double backward_ms, double activation_mb,
                   double parameter_mb) {
  return {.name = std::move(name),
          .forward_s = forward_ms * 1e-3,
          .backward_s = backward_ms * 1e-3,
          .activation_bytes = static_cast<std::uint64_t>(activation_mb * 1e6),
          .parameter_bytes = static_cast<std::uint64_t>(parameter_mb * 1e6)};
}

inline void repeat(Profile& p, int count, Layer const& each) {
  for (int i = 0; i < count; ++i) {
    p.layers.push_back(each);
    p.layers.back().name += stagger::text("_", i + 1);
  }
}

/// Sets what a batch keeps for its backward pass so that the memory of one device is as published,
/// and distributes it over the layers by their times.
inline void keep(Profile& p, double gigabytes) {
  double seconds = 0;
  for (auto const& l : p.layers) seconds += l.forward_s;
  for (auto& l : p.layers)
    l.stash_bytes = static_cast<std::uint64_t>(gigabytes * 1e9 * l.forward_s / seconds);
}

/// BERT with `layers` equal layers between an embedding and a pooler; times for `batch` samples.
inline Profile bert(int layers = 48, int batch = 2) {
  double const share = batch / 2.0;
  Profile p{.name = "BERT-" + std::to_string(layers), .batch = batch, .device = "V100"};
  p.layers.push_back(layer("embedding", 0.01, 0.01, 4.325 * share, 127));
  repeat(p, layers, layer("layer", 2.69 * share, 4.47 * share, 4.325 * share, 50.385));
  p.layers.push_back(layer("pooler", 0.01, 0.01, 0.01 * share, 4.2));
  keep(p, 1.2 * share * layers / 48);  // 11.4 GB for two samples; 10.2 are parameters and states
  return p;
}

inline Profile xlnet() {
  Profile p{.name = "XLNet-36", .batch = 1, .device = "V100"};
  p.layers.push_back(layer("embedding", 0.01, 0.01, 2, 131));
  repeat(p, 36, layer("layer", 3.4, 4.9, 2, 52));
  keep(p, 4);  // 12 GB for one sample
  return p;
}

/// VGG-19: 3x3 convolutions with pooling between them, then three dense layers. Its 51 and 96 ms
/// are distributed by multiply-adds; those of dense layers, which are limited by memory bandwidth,
/// count three times.
inline Profile vgg19() {
  constexpr int batch = 32;
  constexpr double slower = 3;
  Profile p{.name = "VGG-19", .batch = batch, .device = "V100"};
  std::vector<double> work;
  auto const add = [&](std::string name, double macs, double outputs, double parameters) {
    p.layers.push_back(layer(std::move(name), 0, 0, outputs * batch * 4e-6, parameters * 4e-6));
    work.push_back(macs);
  };
  double in = 3, side = 224;
  int number = 0;
  for (auto const& [out, count] :
       std::vector<std::pair<double, int>>{{64, 2}, {128, 2}, {256, 4}, {512, 4}, {512, 4}}) {
    for (int i = 0; i < count; ++i) {
      double const parameters = in * out * 9 + out;
      add("conv_" + std::to_string(++number), parameters * side * side, out * side * side,
          parameters);
      in = out;
    }
    side /= 2;
    add("pool_" + std::to_string(number), 0, out * side * side, 0);
  }
  for (double const out : {4096.0, 4096.0, 1000.0}) {
    double const from = out == 1000 ? 4096 : in * side * side;
    add("dense", slower * from * out, out, from * out + out);
    in = out;
    side = 1;
  }
  double sum = 0;
  for (double const w : work) sum += w;
  for (std::size_t i = 0; i < work.size(); ++i) {
    p.layers[i].forward_s = 51e-3 * work[i] / sum;
    p.layers[i].backward_s = 96e-3 * work[i] / sum;
  }
  keep(p, 3.4);  // 5.6 GB for 32 samples
  return p;
}

/// GNMT: eight encoder layers, and eight decoder layers that take 1.45 times as long; 291 M
/// parameters.
inline Profile gnmt() {
  Profile p{.name = "GNMT-16", .batch = 64, .device = "V100"};
  repeat(p, 8, layer("encoder", 3.45, 6.5, 26, 291 * 4.0 / 16));
  repeat(p, 8, layer("decoder", 3.45 * 1.45, 6.5 * 1.45, 26, 291 * 4.0 / 16));
  return p;
}

/// AmoebaNet: 36 cells; the first 24 have 1.57 times the work and 1 / 2.74 of the parameters of the
/// others.
inline Profile amoeba() {
  Profile p{.name = "AmoebaNet-36", .batch = 1, .device = "V100"};
  double const ms = 168, first = 1.57 / 2.57, parameters = 3730, light = 1 / 3.74;
  repeat(
      p, 24,
      layer("cell", ms * first / 24 / 3, ms * first / 24 * 2 / 3, 11.2, parameters * light / 24));
  repeat(p, 12,
         layer("wide", ms * (1 - first) / 12 / 3, ms * (1 - first) / 12 * 2 / 3, 11.2,
               parameters * (1 - light) / 12));
  keep(p, 5);  // 20 GB for one sample
  return p;
}

/// ResNet-50: 50 layers of equal work in four groups, whose parameters double from group to group;
/// 98 MiB, and a backward pass of 0.24 s for 128 samples.
inline Profile resnet50() {
  Profile p{.name = "ResNet-50", .batch = 128, .device = "V100"};
  std::vector<int> const blocks{3, 4, 6, 3};
  double weights = 0, size = 1;
  for (int const b : blocks) weights += b * size, size *= 4;
  size = 1;
  double activation = 411;
  for (int const b : blocks) {
    repeat(p, b, layer("block", 120.0 / 16, 240.0 / 16, activation, 94.6 * size / weights));
    size *= 4;
    activation /= 2;
  }
  p.layers.push_back(layer("dense", 0.5, 1, 0.5, 8.2));
  return p;
}

}  // namespace dapple_models
