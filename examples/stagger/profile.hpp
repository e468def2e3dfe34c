// SPDX-License-Identifier: Apache-2.0
#pragma once
// Profiles and clusters, from files or by name.

#include <string>
#include <vector>

#include <stagger/cluster/cluster.hpp>
#include <stagger/cluster/profile.hpp>

#include "flags.hpp"
#include "networks.hpp"

namespace tool {

/// Reads a profile, as JSON or as PipeDream's graph.txt. Warns of values that look like a wrong
/// unit.
/// @throws stagger::Error naming file, line, field and value
[[nodiscard]] stagger::cluster::Profile read_profile(std::string const& path);

/// A cluster: a preset by its name, or a file.
/// @throws stagger::Error naming file, line, field and value
[[nodiscard]] stagger::cluster::Cluster read_cluster(std::string const& name);

/// The flags --profile and --cluster: a model and the devices that it runs on.
class ModelAndCluster {
 public:
  /// @return both
  std::vector<Flag> flags(Flags& app);

  /// Throws if one of the flags is missing.
  /// @param command                 name of the command, which needs both
  /// @param no_profile, no_cluster  alternatives to the flag, printed after "FILE"
  void require(std::string const& command, std::string const& no_profile,
               std::string const& no_cluster) const;

  [[nodiscard]] stagger::cluster::Profile profile() const { return read_profile(profile_); }
  [[nodiscard]] stagger::cluster::Cluster cluster() const { return read_cluster(cluster_); }

 private:
  std::string profile_{}, cluster_{};
};

/// The folder with measured profiles: the value of --profiles, or the variable STAGGER_PROFILES.
[[nodiscard]] std::string profiles_folder(std::string const& flag);

/// Reads what gradient grouping needs from a profile's layers.
/// @throws stagger::Error naming file, line, field and value
[[nodiscard]] Layers read_layers(std::string const& path);

}  // namespace tool
