// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   HetPipe's claims about throughput and time to a target, run with real gradients in virtual
///         time.

#include <string>
#include <vector>

#include "output.hpp"
#include "settings.hpp"

namespace hetero {

/// The runs of `--paper hetpipe`, one seed after the other.
/// @throws Error  bad_configuration for a loss that is not finite
[[nodiscard]] std::vector<Compared> run_hetpipe(Settings const& s);

/// A table of the claims: published, here, and whether that reproduces them.
[[nodiscard]] std::string claims_of_hetpipe(std::vector<Compared> const& runs);

/// For files, which show one run of each kind.
[[nodiscard]] std::vector<Compared> first_seed(std::vector<Compared> runs);

}  // namespace hetero
