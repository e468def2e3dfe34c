// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Upload of a batch to a GPU.

#include <cstddef>

#include <stagger/engine/step.hpp>

#include "../text.hpp"
#include "layers.hpp"

namespace gpt::gpu {

using DeviceBatch = stagger::Batch<DeviceTokens, DeviceTokens>;

/// Copies a batch to the GPU, into the memory of the last batch, since a graph keeps the addresses.
inline void upload(Tokens const& host, DeviceTokens& device) {
  device.resize_like(host);
  stagger::cuda::check(cudaMemcpy(device.data(), host.data(), host.size(), cudaMemcpyHostToDevice),
                       "copy a batch");
  // The copies are on the null stream, for which the engine's streams do not wait.
  stagger::cuda::check(cudaStreamSynchronize(nullptr), "copy a batch");
}

inline void upload(Batch const& from, DeviceBatch& to) {
  to.inputs.resize(from.inputs.size());
  to.targets.resize(from.targets.size());
  for (std::size_t m = 0; m < from.inputs.size(); ++m) {
    upload(from.inputs[m], to.inputs[m]);
    upload(from.targets[m], to.targets[m]);
  }
}

}  // namespace gpt::gpu
