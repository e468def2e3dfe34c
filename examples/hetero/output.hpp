// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   What is printed and written of a run.

#include <string>

#include "run.hpp"
#include "settings.hpp"

namespace hetero {

/// The loss whose time is reported.
[[nodiscard]] double target_of(Settings const& s);

/// Workers, totals and the loss over time, for people.
[[nodiscard]] std::string table_of(Settings const& s, Run const& run);

}  // namespace hetero
