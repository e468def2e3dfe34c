// SPDX-License-Identifier: Apache-2.0
#pragma once
// Profiles: measured times and sizes of a model's layers.

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <stagger/collective/iteration.hpp>

namespace tool {

/// Times and gradients of a model's layers; the first is next to the input.
struct Layers {
  double forward_s = 0;  ///< of all layers
  std::vector<double> backward_s{};
  std::vector<std::uint64_t> bytes{};

  [[nodiscard]] stagger::collective::Backward backward() const {
    return {forward_s, backward_s, bytes};
  }
};

/// Reads JSON from a file; `-` is standard input.
/// @throws stagger::Error naming file, line, column and value
[[nodiscard]] nlohmann::json read_json(std::string const& path);

/// The layers of a profile: JSON, or PipeDream's graph.txt.
/// @throws stagger::Error naming the file and the layer or the line
[[nodiscard]] Layers read_layers(std::string const& path);

}  // namespace tool
