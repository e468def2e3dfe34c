// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   OSP's claims about throughput and accuracy, in virtual time.

#include <string>

#include "settings.hpp"

namespace hetero {

/// Trains the networks of teacher.hpp and textures.hpp with each of the settings' seeds, and plays
/// steps of the paper's networks. Says on standard error what it has done.
/// @return tables of the claims: published, here, and whether that reproduces them
[[nodiscard]] std::string claims_of_osp(Settings const& s);

/// The part about accuracy of textures.hpp.
[[nodiscard]] std::string accuracy_of_osp_on_textures(Settings const& s);

}  // namespace hetero
