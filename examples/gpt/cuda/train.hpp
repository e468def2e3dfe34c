// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Training on a GPU.

#include <stagger/cluster/profile.hpp>

#include "../text.hpp"
#include "../train.hpp"

namespace gpt {

/// Trains as the settings say, with each rank on a stream of GPU 0. With `compare` the host takes
/// each step as well, from the same parameters, and loss and norm of the gradients must agree
/// within the tolerances of docs/gpu.md.
/// @throws Error   if there is no GPU or this program was built without CUDA, and as `train`
[[nodiscard]] Outcome train_on_gpu(Settings const& settings, char const* sources);

/// Measures the cost of each layer on GPU 0, by its own clock, for planners.
/// @throws Error  as train_on_gpu
[[nodiscard]] stagger::cluster::Profile profile_on_gpu(Settings const& settings, Text const& text,
                                                       int sequences, int repeats);

}  // namespace gpt
