// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The options that a device policy gives to the engine for GPUs.

#include <cstddef>

#include <stagger/cuda/graph.hpp>
#include <stagger/cuda/kernels.hpp>
#include <stagger/cuda/ranges.hpp>
#include <stagger/cuda/wire.hpp>

namespace stagger::cuda::detail {

/// How values are sent between layers.
struct Wires {
  WireType const* table = nullptr;
  std::size_t count = 0;
  bool shapes_change = false;  ///< from step to step
};

/// See the members of `cuda::Gpus` and `nccl::Gpus`.
struct GpusOptions {
  ParameterKernels const* kernels = nullptr;
  bool capture = false;
  Ranges ranges{};
  GraphCounts* counts = nullptr;
  int ahead = 2;
  Wires wires{};
};

}  // namespace stagger::cuda::detail
