// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   What a test that needs a GPU does where there is none.

#include <cstdio>

#include <stagger/cuda/device.hpp>

/// Whether there is no GPU; says so once, in words that ctest takes for a skipped test.
inline bool no_gpu() {
  static bool const none = [] {
    try {
      static_cast<void>(stagger::cuda::select_device(0));
      return false;
    } catch (stagger::Error const& error) {
      std::printf("gpu: skipped: %s\n", error.what());
      return true;
    }
  }();
  return none;
}
