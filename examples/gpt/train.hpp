// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Training on this machine's processors or over MPI.

#include "settings.hpp"

namespace gpt {

/// Exit code of the program.
enum class Outcome : int {
  finished = 0,
  differs = 1,
  refused = 2,  ///< a process of the job has already printed the error
  interrupted = 130
};

/// Trains as the settings say, on threads of this machine, or as one of the processes of an MPI
/// job, of which only the first prints and writes.
/// @param sources  folder with the sources of stagger, the default training text
/// @throws Error   for settings that cannot be used, and for a step that fails; over MPI the error
///                 is printed instead, and Outcome::refused returned
[[nodiscard]] Outcome train(Settings const& settings, char const* sources);

}  // namespace gpt
