// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   On which GPU parameters lie, and how a process comes by those of others.

#include <cstddef>
#include <span>
#include <vector>

#include <stagger/cuda/tensor.hpp>
#include <stagger/nccl/detail/links.hpp>

namespace stagger::nccl::detail {

/// Parameters go to the GPU of their first owner; where that is of another process, to one that
/// uses them; else they stay.
/// @param memories  [GPUs of this process]
[[gnu::cold]] inline void settle_parameters(
    stagger::detail::Machine& machine, Links const& links,
    std::vector<stagger::detail::ParameterMemory> const& memories) {
  auto const& program = machine.program();
  auto const& distributed_state = links.distributed_state();
  auto const memory_of = [&](std::size_t cell) {
    std::size_t const rank = distributed_state.rank_of(cell);
    return links.own(rank) ? &memories[links.gpu_of(rank)] : machine.memory_of_parameters();
  };
  for (std::size_t c = 0; c < program.cells.size(); ++c) {
    std::size_t home = distributed_state.first_owner(c);
    while (!links.own(distributed_state.rank_of(home)) && home + 1 < program.cells.size() &&
           program.cells[home + 1].stage == program.cells[c].stage)
      ++home;
    distributed_state.settle(c, memory_of(c), memory_of(home));
  }
}

/// Brings values and optimizer state of every layer from the process that updates it, each of which
/// has one GPU.
/// @param place  [ranks]
[[gnu::cold]] inline void gather_parameters(stagger::detail::Machine& machine, GpuSet& gpu_set,
                                            Links const& links, std::vector<int> const& place) {
  auto const& distributed_state = links.distributed_state();
  auto& gpu = gpu_set[0];
  gpu_set.select(0);
  cuda::Tensor<std::byte> passing;  // for what has no place on this GPU
  for (std::size_t c = 0; c < machine.program().cells.size(); ++c) {
    if (distributed_state.first_owner(c) != c) continue;
    int const root = place[distributed_state.rank_of(c)];
    distributed_state.each_layer(c, [&](std::size_t l, auto const*) {
      auto const& parameters = distributed_state.parameters(l);
      bool const here = parameters.memory() != machine.memory_of_parameters();
      for (auto const block : parameters.blocks()) {
        if (block.empty()) continue;
        if (!here) passing.resize({block.size()});
        std::span const there = here ? block : std::span(passing.data(), block.size());
        gpu.world.broadcast(there, root).wait(machine.options().deadline_s);
        if (!here)
          cuda::check(cudaMemcpy(block.data(), there.data(), block.size(), cudaMemcpyDeviceToHost),
                      "fetch parameters");
      }
    });
  }
}

}  // namespace stagger::nccl::detail
