// SPDX-License-Identifier: Apache-2.0
#pragma once
// Layers of two published networks, and layers at random.

#include <random>

#include <stagger/collective/iteration.hpp>

#include "networks.hpp"

namespace collective_test {

using tool::googlenet;
using tool::Layers;
using tool::resnet50;

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
