// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Named ranges around what the host enqueues, for a profiler: a pair of functions, so that
/// a program without ranges includes no header of a profiler.

#include <stagger/core/requirements.hpp>

namespace stagger::cuda {

/// The functions by which an engine announces the actions that it enqueues. `nvtx.hpp` has one for
/// NVIDIA's profilers.
struct Ranges {
  void (*begin)(char const* name) = nullptr;  ///< the name is valid only until it returns
  void (*end)() = nullptr;
};

}  // namespace stagger::cuda
