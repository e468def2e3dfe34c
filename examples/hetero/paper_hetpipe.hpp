// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   HetPipe's claims about throughput and time to a target, run with real gradients in virtual
///         time.

#include <string>
#include <vector>

#include "output.hpp"
#include "settings.hpp"

namespace hetero {

/// The runs of `--paper hetpipe`, in the order in which claims_of_hetpipe takes them.
/// @throws Error  bad_configuration for a loss that is not finite
[[nodiscard]] std::vector<Compared> run_hetpipe(Settings const& s);

/// A table of the claims: published, here, and whether that reproduces them.
[[nodiscard]] std::string claims_of_hetpipe(std::vector<Compared> const& runs);

}  // namespace hetero
