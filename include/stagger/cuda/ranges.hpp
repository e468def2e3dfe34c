// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Named ranges around what the host enqueues, for a profiler: a pair of functions, so that
/// a program without ranges includes no header of a profiler.

#include <stagger/core/requirements.hpp>

namespace stagger::cuda {

/// Where an engine announces the actions it enqueues. `nvtx.hpp` has one for NVIDIA's profilers.
struct Ranges {
  void (*begin)(char const* name) = nullptr;  ///< the name stays only until it returns
  void (*end)() = nullptr;
};

}  // namespace stagger::cuda
