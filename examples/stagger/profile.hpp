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

/// A cluster: a preset by its name, or a file.
/// @throws stagger::Error naming file, line, field and value
[[nodiscard]] stagger::cluster::Cluster read_cluster(std::string const& name);

/// The flags --profile and --cluster: a model and the devices that it runs on.
class ModelAndCluster {
 public:
  /// @return both
  std::vector<Flag> flags(Flags& app);

  /// Adds --profile-batch, which a command needs whose answer depends on the samples of the profile.
  Flag batch_flag(Flags& app);

  /// Throws if one of the flags is missing.
  /// @param command                 name of the command, which needs both
  /// @param no_profile, no_cluster  alternatives to the flag, printed after "FILE"
  void require(std::string const& command, std::string const& no_profile,
               std::string const& no_cluster) const;

  /// The profile, from JSON or PipeDream's graph.txt. Warns of values that look like a wrong unit,
  /// and of branches that were left out.
  /// @throws stagger::Error naming file, line, field and value; for a batch that is missing, or given
  ///                        twice
  [[nodiscard]] stagger::cluster::Profile profile() const;
  [[nodiscard]] stagger::cluster::Cluster cluster() const { return read_cluster(cluster_); }

 private:
  std::string profile_{}, cluster_{};
  int batch_ = 0;
  Flag batch_flag_{};
  bool needs_batch_ = false;
};

/// The folder with measured profiles: the value of --profiles, or the variable STAGGER_PROFILES.
[[nodiscard]] std::string profiles_folder(std::string const& flag);

/// Reads what gradient grouping needs from a profile's layers.
/// @throws stagger::Error naming file, line, field and value
[[nodiscard]] Layers read_layers(std::string const& path);

}  // namespace tool
