// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The memory of a pipeline, by use.

#include <stagger/core/requirements.hpp>

#include <cstdint>

namespace stagger {

/// Memory of a pipeline by use, in bytes.
struct Memory {
  std::uint64_t parameters = 0;       ///< values, gradients and optimizer state
  std::uint64_t activations = 0;      ///< stage inputs, inner outputs and saved state, all slots
  std::uint64_t gradients = 0;        ///< of activations, all slots
  std::uint64_t scratch = 0;          ///< of stages; and parameters' gradients from other processes
  std::uint64_t optimizer_state = 0;  ///< contained in `parameters`
};

}  // namespace stagger
