// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   What a GPU's back end says: of programs that it cannot run, and of a device that stalls.

#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>
#include <vector>

#include <stagger/cuda/detail/jobs.hpp>
#include <stagger/cuda/kernels.hpp>
#include <stagger/engine/machine.hpp>
#include <stagger/program/describe.hpp>

namespace stagger::cuda::detail {

/// Refuses a program whose parameters lie on the GPU for want of a kernel.
/// @throws stagger::Error  bad_configuration
[[gnu::cold]] inline void require_runnable(stagger::detail::Machine& machine,
                                           ParameterKernels const* given) {
  Program const& program = machine.program();
  if (!program.training || machine.parameter_count() == 0) return;
  auto const refuse = [](char const* sentence) { raise(Errc::bad_configuration, sentence); };
  if (machine.enqueued_bytes() == 0)
    refuse(
        "parameters on a GPU need an optimizer whose update is a kernel; give Pipeline::with a "
        "cuda::Enqueued, or use cuda::Work::host");
  ParameterKernels const kernels = given != nullptr ? *given : ParameterKernels{};
  if (program.cells.size() > static_cast<std::size_t>(program.stages) && kernels.add == nullptr)
    refuse(
        "stages with two owners, or replicas, need a kernel that adds gradients; give "
        "Loopback::kernels one, or use a schedule with one owner for each stage, without replicas");
  if (machine.options().clip_norm && (kernels.sum_squares == nullptr || kernels.scale == nullptr))
    refuse(
        "Options::clip_norm needs kernels that sum up squares and find the scale; give "
        "Loopback::kernels both, or leave clip_norm out");
}

/// Where each rank is that is not done, by what is known of the device.
[[nodiscard]] [[gnu::cold]] inline std::string where(stagger::detail::Machine const& machine,
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
  return stagger::detail::describe_stall(program, at, given);
}

/// That nothing moved for the deadline.
[[nodiscard]] [[gnu::cold]] inline std::exception_ptr stall(stagger::detail::Machine const& machine,
                                                            Jobs const& jobs) noexcept {
  try {
    return std::make_exception_ptr(stagger::Error(
        Errc::deadline, text("the GPU did not move for ", machine.options().deadline_s,
                             " s: ", where(machine, jobs),
                             "; raise Options::deadline_s if an action may take that long")));
  } catch (...) {
    return std::current_exception();
  }
}

/// What CUDA refused once a step was decided.
[[nodiscard]] [[gnu::cold]] inline std::exception_ptr refusal(cudaError_t result) noexcept {
  try {
    fail(result, "change parameters of a step that was decided");
  } catch (...) {
    return std::current_exception();
  }
}

[[noreturn]] [[gnu::cold]] inline void refuse_lost() {
  raise(Errc::device, "the GPU was lost in an earlier step; make a new pipeline");
}

/// The same failure, with the step that it ended and how far that was when the device was last
/// looked at.
[[nodiscard]] [[gnu::cold]] inline std::exception_ptr of_step(
    std::exception_ptr const& failure, std::int64_t step, stagger::detail::Machine const& machine,
    Jobs const& jobs) noexcept {
  try {
    try {
      std::rethrow_exception(failure);
    } catch (Error const& error) {
      throw Error(error.result(), text("step ", step, ": ", error.what(),
                                       "; when it was last looked at, ", where(machine, jobs)));
    } catch (stagger::Error const& error) {
      raise(error.code(), "step ", step, ": ", error.what());
    }
  } catch (...) {
    return std::current_exception();
  }
}

}  // namespace stagger::cuda::detail
