// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The claims of HetPipe and OSP, run with real gradients in virtual time: published, here,
///         and whether that reproduces them.

#include <string>
#include <vector>

#include "output.hpp"
#include "settings.hpp"

namespace hetero {

/// The runs of `--paper hetpipe`, one seed after the other.
/// @throws Error  bad_configuration for a loss that is not finite
[[nodiscard]] std::vector<Compared> run_hetpipe(Settings const& s);
/// A table of what they show of throughput, and of the time to a target.
[[nodiscard]] std::string claims_of_hetpipe(std::vector<Compared> const& runs);
/// For files, which show one run of each kind.
[[nodiscard]] std::vector<Compared> first_seed(std::vector<Compared> runs);

/// Trains the networks of teacher.hpp and textures.hpp with each of the settings' seeds, and plays
/// steps of OSP's networks. Says on standard error what it has done.
/// @return tables of throughput and accuracy
[[nodiscard]] std::string claims_of_osp(Settings const& s);
/// The part about accuracy of textures.hpp.
[[nodiscard]] std::string accuracy_of_osp_on_textures(Settings const& s);

}  // namespace hetero
