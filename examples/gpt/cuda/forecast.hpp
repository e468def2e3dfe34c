// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Memory and layer times of the model on a GPU, and planning with them.

#include <string>

#include <stagger/cuda/device.hpp>
#include <stagger/plan/plan.hpp>

#include "../forecast.hpp"
#include "../settings.hpp"
#include "../text.hpp"

namespace gpt::gpu {

/// Checks that GPU 0 can run the kernels.
/// @throws Error  if there is no GPU 0, or the kernels are not compiled for it
void require_kernels();

/// The least memory that training needs.
[[nodiscard]] stagger::cuda::MemoryNeed memory_need(Settings const& settings);

/// Measures the layers by the GPU's clock, and makes a plan for settings.threads such GPUs, or
/// reads the one that settings.plan names. It has no replicas, and its memory is not predicted.
/// @throws Error  as gpt::forecast, and for errors of CUDA
[[nodiscard]] Forecast forecast(Settings const& settings, Text const& text);

/// A table of predictions beside measurements.
[[nodiscard]] std::string compared(Forecast const& forecast, double step_s, double fastest_s);

}  // namespace gpt::gpu
