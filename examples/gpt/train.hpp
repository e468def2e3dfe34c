// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The run: train, judge, write.

#include "settings.hpp"

namespace gpt {

/// Exit code of the program.
enum class Outcome : int {
  finished = 0,
  differs = 1,
  refused = 2,  ///< for what another process has said already
  interrupted = 130
};

/// Trains as the settings say, on the processors of this machine; over MPI, as one of several
/// processes, of which the first prints and writes.
/// @param sources  folder with the sources of stagger, the text to learn when none is given
/// @throws Error   for anything given that cannot be used, and what a step ends with
[[nodiscard]] Outcome train(Settings const& settings, char const* sources);

}  // namespace gpt
