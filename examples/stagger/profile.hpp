// SPDX-License-Identifier: Apache-2.0
#pragma once
// Profiles and clusters, from files or by name.

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <stagger/cluster/cluster.hpp>
#include <stagger/cluster/profile.hpp>
#include <stagger/collective/iteration.hpp>

#include "flags.hpp"

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

/// A profile: JSON, or PipeDream's graph.txt. What looks like a wrong unit is warned of.
/// @throws stagger::Error naming file, line, field and value
[[nodiscard]] stagger::cluster::Profile read_profile(std::string const& path);

/// A cluster: one of the presets by its name, else a file.
/// @throws stagger::Error naming file, line, field and value
[[nodiscard]] stagger::cluster::Cluster read_cluster(std::string const& name);

/// A model and what it runs on, as commands are given them: --profile and --cluster.
class ModelAndCluster {
 public:
  void flags(Flags& app);

  /// Refuses what is missing.
  /// @param command              that needs both
  /// @param no_profile, no_cluster  what else would do, behind "FILE"
  void require(std::string const& command, std::string const& no_profile,
               std::string const& no_cluster) const;

  [[nodiscard]] bool has_profile() const { return !profile_.empty(); }
  [[nodiscard]] stagger::cluster::Profile profile() const { return read_profile(profile_); }
  [[nodiscard]] stagger::cluster::Cluster cluster() const { return read_cluster(cluster_); }

 private:
  std::string profile_{}, cluster_{};
};

/// What gradient grouping needs of a profile's layers.
/// @throws stagger::Error naming file, line, field and value
[[nodiscard]] Layers read_layers(std::string const& path);

}  // namespace tool
