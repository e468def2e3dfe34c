// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   What the model takes of a GPU: its memory, its time layer by layer, and the plan that
/// follows.

#include <string>

#include <stagger/cuda/device.hpp>
#include <stagger/plan/plan.hpp>

#include "../forecast.hpp"
#include "../settings.hpp"
#include "../text.hpp"

namespace gpt::gpu {

/// @throws Error  where there is no GPU 0, or one that the kernels are not compiled for
void require_kernels();

/// Memory that training cannot do with less of.
[[nodiscard]] stagger::cuda::MemoryNeed memory_need(Settings const& settings);

/// Measures the layers by the GPU's clock, and plans for settings.threads such GPUs, or reads
/// settings.plan and predicts that. Without replicas; memory is not predicted.
/// @throws Error  as gpt::forecast, and what CUDA refuses
[[nodiscard]] Forecast forecast(Settings const& settings, Text const& text);

/// What was predicted beside what was measured.
[[nodiscard]] std::string compared(Forecast const& forecast, double step_s, double fastest_s);

}  // namespace gpt::gpu
