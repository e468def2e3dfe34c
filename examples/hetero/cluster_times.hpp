// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   How long the stages of each worker and the link of the server take in virtual time.

#include <string>
#include <vector>

#include <stagger/schedule/costs.hpp>

#include "settings.hpp"

namespace hetero {

/// What a worker runs on.
struct WorkerTimes {
  std::string devices;             ///< "VRGQ", or empty
  stagger::schedule::Costs costs;  ///< of each stage on a minibatch
};

/// What all of them run on.
struct ClusterTimes {
  std::vector<WorkerTimes> workers;
  double pushes_s = 0;  ///< for the link to carry one push of every worker
  double images = 1;    ///< of the timed model in a minibatch
};

/// @throws Error  bad_configuration for numbers that the cluster does not have
[[nodiscard]] ClusterTimes times_of(Settings const& s);

}  // namespace hetero
