// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The check for kernels that a program needs.

#include <utility>

#include <stagger/cuda/kernels.hpp>
#include <stagger/engine/machine.hpp>

namespace stagger::cuda::detail {

/// @throws stagger::Error  bad_configuration, naming the kernel that is missing
[[gnu::cold]] inline void require_runnable(stagger::detail::Machine const& machine,
                                           ParameterKernels const* given) {
  Program const& program = machine.program();
  if (!program.training || machine.model.parameter_count() == 0) return;
  ParameterKernels const kernels = given != nullptr ? *given : ParameterKernels{};
  if (machine.model.optimizer.enqueued_bytes == 0)
    raise(Errc::bad_configuration,
          "parameters on a GPU need an optimizer whose update is a kernel; give Pipeline::with a "
          "cuda::Enqueued, or use host::Threads");
  if (std::cmp_greater(program.cells.size(), program.stages) && kernels.add == nullptr)
    raise(Errc::bad_configuration,
          "stages with two owners, or replicas, need a kernel that adds gradients; give "
          "Gpus::kernels one, or use a schedule with one owner for each stage, without replicas");
  if (machine.options().clip_norm && (kernels.sum_squares == nullptr || kernels.scale == nullptr))
    raise(Errc::bad_configuration,
          "Options::clip_norm needs kernels that sum up squares and find the scale; give "
          "Gpus::kernels both, or leave clip_norm out");
}

}  // namespace stagger::cuda::detail
