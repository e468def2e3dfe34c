// SPDX-License-Identifier: Apache-2.0
#pragma once
// Layers of two published networks, computed from their shapes, and layers at random.

#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include <stagger/collective/iteration.hpp>

namespace collective_test {

/// Layers with times of their own; converts to what groupings take.
struct Layers {
  double forward_s = 0;
  std::vector<double> backward_s{};
  std::vector<std::uint64_t> bytes{};
  operator stagger::collective::Backward() const { return {forward_s, backward_s, bytes}; }
  [[nodiscard]] double compute_s() const {
    double s = forward_s;
    for (double t : backward_s) s += t;
    return s;
  }
  [[nodiscard]] std::uint64_t total_bytes() const {
    std::uint64_t s = 0;
    for (auto q : bytes) s += q;
    return s;
  }
};

/// Parameters and multiply-adds per layer, first layer first.
struct Network {
  std::vector<double> parameters{};
  std::vector<double> macs{};

  void add(double p, double m) {
    parameters.push_back(p);
    macs.push_back(m);
  }
  void convolution(double in, double out, double kernel, double height, bool bias) {
    double const p = in * out * kernel * kernel + (bias ? out : 0);
    add(p, p * height * height);
  }

  /// Times for a computing time of T seconds: a third forward, the rest by work, a fifth of it
  /// evenly.
  [[nodiscard]] Layers timed(double T) const {
    double sum = 0;
    for (double m : macs) sum += m;
    Layers layers;
    layers.forward_s = T / 3;
    for (std::size_t i = 0; i < macs.size(); ++i) {
      layers.backward_s.push_back(2 * T / 3 *
                                  (0.8 * macs[i] / sum + 0.2 / static_cast<double>(macs.size())));
      layers.bytes.push_back(static_cast<std::uint64_t>(4 * parameters[i]));
    }
    return layers;
  }
};

/// 53 convolutions, each followed by a scale/shift layer unless left out, and a dense layer.
inline Network resnet50(bool scales = true) {
  Network n;
  auto const conv = [&](double in, double out, double kernel, double height) {
    n.convolution(in, out, kernel, height, false);
    if (scales) n.add(2 * out, 4 * out * height * height);
  };
  conv(3, 64, 7, 112);
  struct {
    double width;
    int blocks;
    double height;
  } const stages[] = {{64, 3, 56}, {128, 4, 28}, {256, 6, 14}, {512, 3, 7}};
  double in = 64;
  for (auto const& s : stages) {
    for (int b = 0; b < s.blocks; ++b) {
      if (b == 0) conv(in, 4 * s.width, 1, s.height);
      conv(in, s.width, 1, s.height);
      conv(s.width, s.width, 3, s.height);
      conv(s.width, 4 * s.width, 1, s.height);
      in = 4 * s.width;
    }
  }
  n.add(2048 * 1000 + 1000, 2048 * 1000);
  return n;
}

/// GoogleNet with both auxiliary classifiers: 64 layers.
inline Network googlenet() {
  Network n;
  auto const dense = [&](double in, double out) { n.add(in * out + out, in * out + out); };
  n.convolution(3, 64, 7, 112, true);
  n.convolution(64, 64, 1, 56, true);
  n.convolution(64, 192, 3, 56, true);
  double const blocks[9][8] = {
      {192, 64, 96, 128, 16, 32, 32, 28},     {256, 128, 128, 192, 32, 96, 64, 28},
      {480, 192, 96, 208, 16, 48, 64, 14},    {512, 160, 112, 224, 24, 64, 64, 14},
      {512, 128, 128, 256, 24, 64, 64, 14},   {512, 112, 144, 288, 32, 64, 64, 14},
      {528, 256, 160, 320, 32, 128, 128, 14}, {832, 256, 160, 320, 32, 128, 128, 7},
      {832, 384, 192, 384, 48, 128, 128, 7}};
  for (int b = 0; b < 9; ++b) {
    double const* const w = blocks[b];
    n.convolution(w[0], w[1], 1, w[7], true);
    n.convolution(w[0], w[2], 1, w[7], true);
    n.convolution(w[2], w[3], 3, w[7], true);
    n.convolution(w[0], w[4], 1, w[7], true);
    n.convolution(w[4], w[5], 5, w[7], true);
    n.convolution(w[0], w[6], 1, w[7], true);
    if (b == 2 || b == 5) {
      n.convolution(b == 2 ? 512 : 528, 128, 1, 4, true);
      dense(2048, 1024);
      dense(1024, 1000);
    }
  }
  dense(1024, 1000);
  return n;
}

/// Up to `most` layers whose start-up, transfer and backward times are of like size.
inline Layers random_layers(std::mt19937& random, int most, bool parameterless = false) {
  std::uniform_real_distribution<double> time(0.0, 1.0);
  Layers layers;
  int const n = 1 + static_cast<int>(random() % static_cast<unsigned>(most));
  layers.forward_s = time(random);
  for (int i = 0; i < n; ++i) {
    layers.backward_s.push_back(random() % 8 == 0 ? 0.0 : time(random));
    bool const none = parameterless && random() % 4 == 0;
    layers.bytes.push_back(none ? 0 : 1 + random() % (random() % 3 == 0 ? 1000 : 50));
  }
  return layers;
}

inline stagger::collective::CostLine random_cost(std::mt19937& random) {
  std::uniform_real_distribution<double> a(0.0, 1.5), b(0.0, 0.02);
  return {random() % 10 == 0 ? 0.0 : a(random), b(random)};
}

}  // namespace collective_test
