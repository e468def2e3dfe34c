// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   What a back end of streams is told by its device policy.

#include <cstdint>

#include <stagger/cuda/graph.hpp>
#include <stagger/cuda/kernels.hpp>
#include <stagger/cuda/ranges.hpp>

namespace stagger::cuda {

/// How the actions of a rank get onto its stream.
enum class Work : std::uint8_t {
  enqueue,  ///< a stage's functions are called ahead of time and put kernels on `cuda::stream()`
  host,     ///< each action is one host function of the stream: for stages that compute on the host
};

/// What `Loopback` says, for `StreamsBackend`.
struct StreamsOptions {
  int device = 0;
  Work work = Work::enqueue;
  bool capture = false;
  Ranges ranges{};
  GraphCounts* counts = nullptr;
  ParameterKernels const* kernels = nullptr;
  int ahead = 2;
};

}  // namespace stagger::cuda
