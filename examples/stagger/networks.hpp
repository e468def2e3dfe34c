// SPDX-License-Identifier: Apache-2.0
#pragma once
// Layers of two published networks, computed from their shapes.

#include <cstddef>
#include <cstdint>
#include <vector>

#include <stagger/collective/iteration.hpp>

namespace tool {

/// Backward times and gradient sizes of a model's layers; the first layer is next to the input.
struct Layers {
  double forward_s = 0;  ///< total of all layers
  std::vector<double> backward_s{};
  std::vector<std::uint64_t> bytes{};

  /// As groupings take them.
  operator stagger::collective::Backward() const {
    return {forward_s, backward_s, bytes};
  }  // NOLINT
  [[nodiscard]] double compute_s() const {
    double sum = forward_s;
    for (double const s : backward_s) sum += s;
    return sum;
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
  void dense(double in, double out) { add(in * out + out, in * out + out); }

  /// Layer times for a total computing time of `seconds`. A third of it is the forward pass; four
  /// fifths of the backward pass are distributed by multiply-adds, one fifth evenly.
  [[nodiscard]] Layers timed(double seconds) const {
    double sum = 0;
    for (double const m : macs) sum += m;
    Layers layers;
    layers.forward_s = seconds / 3;
    for (std::size_t i = 0; i < macs.size(); ++i) {
      double const share = 0.8 * macs[i] / sum + 0.2 / static_cast<double>(macs.size());
      layers.backward_s.push_back(2 * seconds / 3 * share);
      layers.bytes.push_back(static_cast<std::uint64_t>(4 * parameters[i]));
    }
    return layers;
  }
};

/// ResNet-50: 53 convolutions, each followed by a scale-and-shift layer unless that is left out, and
/// a dense layer.
[[nodiscard]] inline Network resnet50(bool scales = true) {
  Network n;
  auto const unit = [&](double in, double out, double kernel, double height) {
    n.convolution(in, out, kernel, height, false);
    if (scales) n.add(2 * out, 4 * out * height * height);
  };
  struct Group {
    double width;
    int blocks;
    double height;
  };
  unit(3, 64, 7, 112);
  double in = 64;
  for (Group const g : {Group{64, 3, 56}, Group{128, 4, 28}, Group{256, 6, 14}, Group{512, 3, 7}}) {
    for (int b = 0; b < g.blocks; ++b) {
      if (b == 0) unit(in, 4 * g.width, 1, g.height);
      unit(in, g.width, 1, g.height);
      unit(g.width, g.width, 3, g.height);
      unit(g.width, 4 * g.width, 1, g.height);
      in = 4 * g.width;
    }
  }
  n.add(2048 * 1000 + 1000, 2048 * 1000);
  return n;
}

/// GoogleNet with both auxiliary classifiers: 64 layers.
[[nodiscard]] inline Network googlenet() {
  struct Inception {
    double in, one, reduce3, three, reduce5, five, pooled, height;
    double auxiliary = 0;  ///< input channels of the classifier after this block; 0: none
  };
  Network n;
  n.convolution(3, 64, 7, 112, true);
  n.convolution(64, 64, 1, 56, true);
  n.convolution(64, 192, 3, 56, true);
  for (Inception const& b :
       {Inception{192, 64, 96, 128, 16, 32, 32, 28}, Inception{256, 128, 128, 192, 32, 96, 64, 28},
        Inception{480, 192, 96, 208, 16, 48, 64, 14, 512},
        Inception{512, 160, 112, 224, 24, 64, 64, 14},
        Inception{512, 128, 128, 256, 24, 64, 64, 14},
        Inception{512, 112, 144, 288, 32, 64, 64, 14, 528},
        Inception{528, 256, 160, 320, 32, 128, 128, 14},
        Inception{832, 256, 160, 320, 32, 128, 128, 7},
        Inception{832, 384, 192, 384, 48, 128, 128, 7}}) {
    n.convolution(b.in, b.one, 1, b.height, true);
    n.convolution(b.in, b.reduce3, 1, b.height, true);
    n.convolution(b.reduce3, b.three, 3, b.height, true);
    n.convolution(b.in, b.reduce5, 1, b.height, true);
    n.convolution(b.reduce5, b.five, 5, b.height, true);
    n.convolution(b.in, b.pooled, 1, b.height, true);
    if (b.auxiliary > 0) {
      n.convolution(b.auxiliary, 128, 1, 4, true);
      n.dense(2048, 1024);
      n.dense(1024, 1000);
    }
  }
  n.dense(1024, 1000);
  return n;
}

}  // namespace tool
