// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The run on a GPU.

#include <stagger/cluster/profile.hpp>

#include "../text.hpp"
#include "../train.hpp"

namespace gpt {

/// Trains as the settings say, every rank a stream of GPU 0. With `compare` each step is taken by
/// the host as well, from the same parameters, and loss and norm of the gradients must agree within
/// the tolerances of docs/gpu.md.
/// @throws Error   where there is no GPU, or this program was built without CUDA, and as `train`
[[nodiscard]] Outcome train_on_gpu(Settings const& settings, char const* sources);

/// What each layer costs on GPU 0 by its own clock, for planners.
/// @throws Error  likewise
[[nodiscard]] stagger::cluster::Profile profile_on_gpu(Settings const& settings, Text const& text,
                                                       int sequences, int repeats);

}  // namespace gpt
