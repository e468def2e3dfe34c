// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The profile of the model on this machine, for planners.

#include "settings.hpp"

namespace gpt {

/// Measures one microbatch through the model and writes settings.profile, a JSON file that
/// `stagger plan` and `stagger partition` read.
/// @param sources  as for `train`
/// @throws Error   with Errc::io for a file that cannot be written, and as `train` for a text
void write_profile(Settings const& settings, char const* sources);

}  // namespace gpt
