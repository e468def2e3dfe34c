// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The GPUs on which parameters lie, and the transfer of other processes' parameters.

#include <cstddef>
#include <cstring>
#include <new>
#include <vector>

#include <stagger/core/list.hpp>
#include <stagger/cuda/detail/distributed_state.hpp>
#include <stagger/cuda/detail/parameter_memory.hpp>
#include <stagger/cuda/detail/streams.hpp>

namespace stagger::cuda::detail {

/// Host memory for parameters until a program determines which GPU needs them. Those of stages that
/// other processes run stay there. Steps do not use them.
[[nodiscard]] inline ParameterMemory staging_memory() noexcept {
  ParameterMemory memory{};
  memory.device = -1;
  memory.allocate = [](ParameterMemory const&, std::size_t bytes) -> void* {
    void* const block = ::operator new(bytes, std::align_val_t{alignment_bytes});
    std::memset(block, 0, bytes);
    return block;
  };
  memory.release = [](ParameterMemory const&, void* block) noexcept {
    stagger::detail::AlignedDelete{}(block);
  };
  memory.upload = memory.download =
      memory.copy = [](ParameterMemory const&, void* to, void const* from, std::size_t bytes) {
        std::memcpy(to, from, bytes);
      };
  memory.zero = [](ParameterMemory const&, void* block, std::size_t bytes) noexcept {
    std::memset(block, 0, bytes);
  };
  memory.add = [](ParameterMemory const&, ElementType, void*, void const*, std::size_t) {};
  memory.sum_squares = [](ParameterMemory const&, ElementType, void const*, std::size_t, double*) {
  };
  return memory;
}

/// Moves parameters to the GPU of their first owner; if that is in another process, to a GPU here
/// that uses them; otherwise they stay.
/// @param memories  [GPUs of this process]
[[gnu::cold]] inline void settle_parameters(Streams const& streams,
                                            List<ParameterMemory> const& memories) {
  auto& machine = streams.machine();
  auto const& cells = machine.program().cells;
  stagger::detail::DistributedState const state{machine};
  auto const memory_of = [&](std::size_t cell) {
    std::size_t const rank = state.rank_of(cell);
    return streams.own(rank) ? &memories[streams.gpu_of(rank)] : machine.model.memory;
  };
  for (std::size_t c = 0; c < cells.size(); ++c) {
    std::size_t owner = state.first_owner(c);
    while (!streams.own(state.rank_of(owner)) && owner + 1 < cells.size() &&
           cells[owner + 1].stage == cells[c].stage)
      ++owner;
    state.settle(c, memory_of(c), memory_of(owner));
  }
}

/// Sends the values and the optimizer state of every layer from the process that updates it.
/// @param places  [ranks]
[[gnu::cold]] inline void gather_parameters(Streams const& streams,
                                            std::vector<int> const& places) {
  auto& machine = streams.machine();
  stagger::detail::DistributedState const state{machine};
  auto const& gpus = streams.gpus();
  gpus.select(0);
  Tensor<std::byte> passing;  // for parameters that have no place on this GPU
  for (std::size_t c = 0; c < machine.program().cells.size(); ++c) {
    if (state.first_owner(c) != c) continue;
    int const root = places[state.rank_of(c)];
    state.each_layer(c, [&](std::size_t l, auto const*) {
      auto const& parameters = state.parameters(l);
      bool const here = parameters.memory() != machine.model.memory;
      for (auto const block : parameters.blocks()) {
        if (block.empty()) continue;
        if (!here) passing.resize({block.size()});
        gpus.processes()->broadcast({here ? block.data() : passing.data(), block.size()}, root);
        if (!here)
          check(cudaMemcpy(block.data(), passing.data(), block.size(), cudaMemcpyDeviceToHost),
                "fetch parameters");
      }
    });
  }
}

}  // namespace stagger::cuda::detail
