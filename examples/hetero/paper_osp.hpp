// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   OSP's claims about throughput and accuracy, with real gradients in virtual time.

#include <string>

#include "settings.hpp"

namespace hetero {

/// Trains the network of teacher.hpp with each of the settings' seeds. Says on standard error what it
/// has done.
/// @return tables of the claims: published, here, and whether that reproduces them
[[nodiscard]] std::string claims_of_osp(Settings const& s);

}  // namespace hetero
