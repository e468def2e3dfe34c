// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   What a GPU's back end says: of programs that it cannot run, and of a device that stalls.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <stagger/cuda/detail/jobs.hpp>
#include <stagger/cuda/kernels.hpp>
#include <stagger/engine/machine.hpp>
#include <stagger/engine/stall.hpp>

namespace stagger::cuda::detail {

/// Refuses a program whose parameters lie on the GPU for want of a kernel.
/// @throws stagger::Error  bad_configuration
[[gnu::cold]] inline void require_runnable(stagger::detail::Machine& machine,
                                           ParameterKernels const* given) {
  Program const& program = machine.program();
  if (!program.training || machine.parameter_count() == 0) return;
  auto const refuse = [](char const* sentence) {
    throw stagger::Error(Errc::bad_configuration, sentence);
  };
  if (machine.enqueued_bytes() == 0)
    refuse(
        "parameters on a GPU need an optimizer whose update is a kernel; give Pipeline::with a "
        "cuda::Enqueued, or use cuda::Work::host");
  if (!machine.options().replicas.empty())
    refuse(
        "parameters on a GPU cannot be shared by replicas of a position; leave Options::replicas "
        "out, or use cuda::Work::host");
  ParameterKernels const kernels = given != nullptr ? *given : ParameterKernels{};
  if (program.cells.size() > static_cast<std::size_t>(program.stages) && kernels.add == nullptr)
    refuse(
        "stages with two owners need a kernel that adds gradients; give Loopback::kernels one, or "
        "use a schedule with one owner for each stage");
  if (machine.options().clip_norm && (kernels.sum_squares == nullptr || kernels.scale == nullptr))
    refuse(
        "Options::clip_norm needs kernels that sum up squares and find the scale; give "
        "Loopback::kernels both, or leave clip_norm out");
}

[[nodiscard]] [[gnu::cold]] inline std::string stall_text(stagger::detail::Machine const& machine,
                                                          Jobs const& jobs) {
  auto const& program = machine.program();
  std::vector<std::size_t> at;
  std::vector<std::uint32_t> given(program.signals.size());
  for (std::size_t r = 0; r < program.ranks.size(); ++r) {
    at.push_back(jobs.finished(r));
    for (std::size_t i = 0; i < at[r]; ++i)
      for (unsigned g = 0; g < program.ranks[r].code[i].gives; ++g)
        ++given[program.ranks[r].code[i].give[g]];
  }
  return text("the GPU did not move for ", machine.options().deadline_s,
              " s: ", stagger::detail::describe_stall(program, at, given),
              "; raise Options::deadline_s if an action may take that long");
}

}  // namespace stagger::cuda::detail
