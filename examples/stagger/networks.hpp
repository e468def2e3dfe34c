// SPDX-License-Identifier: Apache-2.0
#pragma once
// Layers of two published networks, computed from their shapes.

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <utility>
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

/// ResNet: convolutions, each followed by a scale-and-shift layer unless that is left out, and a
/// dense layer.
/// @param third  blocks of the third of four groups
[[nodiscard]] inline Network resnet(int third, bool scales, double classes) {
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
  for (Group const g :
       {Group{64, 3, 56}, Group{128, 4, 28}, Group{256, third, 14}, Group{512, 3, 7}}) {
    for (int b = 0; b < g.blocks; ++b) {
      if (b == 0) unit(in, 4 * g.width, 1, g.height);
      unit(in, g.width, 1, g.height);
      unit(g.width, g.width, 3, g.height);
      unit(g.width, 4 * g.width, 1, g.height);
      in = 4 * g.width;
    }
  }
  n.add(2048 * classes + classes, 2048 * classes);
  return n;
}
/// With 53 and 104 convolutions.
[[nodiscard]] inline Network resnet50(bool scales = true, double classes = 1000) {
  return resnet(6, scales, classes);
}
[[nodiscard]] inline Network resnet101() { return resnet(23, true, 1000); }

/// VGG-16: 13 convolutions and three dense layers, of which the first has three quarters of the
/// parameters.
[[nodiscard]] inline Network vgg16() {
  struct Group {
    double width;
    int layers;
  };
  Network n;
  double in = 3, height = 224;
  for (Group const g : {Group{64, 2}, Group{128, 2}, Group{256, 3}, Group{512, 3}, Group{512, 3}}) {
    for (int l = 0; l < g.layers; ++l, in = g.width) n.convolution(in, g.width, 3, height, true);
    height /= 2;
  }
  n.dense(512 * 7 * 7, 4096);
  n.dense(4096, 4096);
  n.dense(4096, 1000);
  return n;
}

/// InceptionV3 with its auxiliary classifier: 96 convolutions with their scales and shifts, and two
/// dense layers.
[[nodiscard]] inline Network inception_v3(double classes) {
  Network n;
  /// Convolutions one after the other. @param kernels  pixels and outputs of each
  auto const chain = [&](double in, double height,
                         std::initializer_list<std::pair<double, double>> kernels) {
    for (auto const& [pixels, out] : kernels) {
      double const p = in * out * pixels;
      n.add(p + 2 * out, p * height * height);
      in = out;
    }
  };
  chain(3, 149, {{9, 32}});
  chain(32, 147, {{9, 32}, {9, 64}});
  chain(64, 73, {{1, 80}});
  chain(80, 71, {{9, 192}});
  for (auto const& [in, pooled] :
       {std::pair{192., 32.}, std::pair{256., 64.}, std::pair{288., 64.}}) {
    chain(in, 35, {{1, 64}});
    chain(in, 35, {{1, 48}, {25, 64}});
    chain(in, 35, {{1, 64}, {9, 96}, {9, 96}});
    chain(in, 35, {{1, pooled}});
  }
  chain(288, 17, {{9, 384}});
  chain(288, 35, {{1, 64}, {9, 96}});
  chain(96, 17, {{9, 96}});
  for (double const w : {128., 160., 160., 192.}) {
    chain(768, 17, {{1, 192}});
    chain(768, 17, {{1, w}, {7, w}, {7, 192}});
    chain(768, 17, {{1, w}, {7, w}, {7, w}, {7, w}, {7, 192}});
    chain(768, 17, {{1, 192}});
  }
  chain(768, 5, {{1, 128}});  // the auxiliary classifier
  chain(128, 1, {{25, 768}});
  n.add(768 * classes + classes, 768 * classes);
  chain(768, 17, {{1, 192}});
  chain(192, 8, {{9, 320}});
  chain(768, 17, {{1, 192}, {7, 192}, {7, 192}});
  chain(192, 8, {{9, 192}});
  for (double const in : {1280., 2048.}) {
    chain(in, 8, {{1, 320}});
    chain(in, 8, {{1, 384}, {3, 384}});
    chain(384, 8, {{3, 384}});
    chain(in, 8, {{1, 448}, {9, 384}, {3, 384}});
    chain(384, 8, {{3, 384}});
    chain(in, 8, {{1, 192}});
  }
  n.add(2048 * classes + classes, 2048 * classes);
  return n;
}

/// BERT-base with the head that finds an answer's first and last word; multiply-adds for a text of so
/// many words.
[[nodiscard]] inline Network bert_base(double words) {
  constexpr double width = 768;
  Network n;
  n.add((30522 + 512 + 2) * width + 2 * width, 0);  // embeddings
  auto const dense = [&](double in, double out) {
    n.add(in * out + out, words * (in * out + out));
  };
  for (int layer = 0; layer < 12; ++layer) {
    for (int i = 0; i < 4; ++i) dense(width, width);  // queries, keys, values, what comes out
    n.add(2 * width, 2 * words * words * width);  // scores and sums of values; scales and shifts
    dense(width, 4 * width);
    dense(4 * width, width);
    n.add(2 * width, 0);
  }
  dense(width, 2);
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
