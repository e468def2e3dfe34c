// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Parameters on GPUs: their memory, the GPU on which each lies, and the transfer of other
///         processes' parameters.

#include <cstddef>
#include <cstring>
#include <vector>

#include <stagger/core/list.hpp>
#include <stagger/cuda/detail/distributed_state.hpp>
#include <stagger/cuda/detail/streams.hpp>
#include <stagger/cuda/kernels.hpp>
#include <stagger/parameters/parameter_memory.hpp>

namespace stagger::cuda::detail {

inline void select(ParameterMemory const& memory) {
  check(cudaSetDevice(memory.device), "select a GPU");
}
/// Waits for the work of the null stream, which the engine's streams do not wait for.
inline void settle() { check(cudaStreamSynchronize(nullptr), "wait for the GPU"); }

[[nodiscard]] [[gnu::cold]] inline void* allocate_zeros(ParameterMemory const& memory,
                                                        std::size_t bytes) {
  select(memory);
  void* block = nullptr;
  if (auto const result = cudaMalloc(&block, bytes); result != cudaSuccess)
    Pool::refuse(result, bytes);
  try {
    check(cudaMemset(block, 0, bytes), "clear memory of the GPU");
    settle();
  } catch (...) {
    static_cast<void>(cudaFree(block));
    throw;
  }
  return block;
}

[[gnu::cold]] inline void copy_now(ParameterMemory const& memory, void* to, void const* from,
                                   std::size_t bytes, cudaMemcpyKind kind) {
  select(memory);
  check(cudaMemcpy(to, from, bytes, kind), "copy parameters");
  settle();
}

/// Page-locked memory of the host, for copies of parameters.
inline constexpr ParameterMemory page_locked{
    .device = -1,
    .host = nullptr,
    .allocate = [](ParameterMemory const&, std::size_t bytes) -> void* {
      void* memory = nullptr;
      check(cudaMallocHost(&memory, bytes), "lock pages of host memory");
      return std::memset(memory, 0, bytes);
    },
    .release = [](ParameterMemory const&,
                  void* block) noexcept { static_cast<void>(cudaFreeHost(block)); },
    .upload = [](ParameterMemory const&, void* to, void const* from,
                 std::size_t bytes) { std::memcpy(to, from, bytes); },
    .download = [](ParameterMemory const&, void* to, void const* from,
                   std::size_t bytes) { std::memcpy(to, from, bytes); },
    .copy = [](ParameterMemory const&, void* to, void const* from,
               std::size_t bytes) { std::memcpy(to, from, bytes); },
    .add = [](ParameterMemory const&, ElementType, void*, void const*, std::size_t) {},
    .sum_squares = [](ParameterMemory const&, ElementType, void const*, std::size_t, double*) {},
    .zero = [](ParameterMemory const&, void* block,
               std::size_t bytes) noexcept { std::memset(block, 0, bytes); },
};

/// The operations of the engine on parameters on a GPU.
[[nodiscard]] inline ParameterMemory parameter_memory(int device) noexcept {
  ParameterMemory memory{};
  memory.device = device;
  memory.host = &page_locked;
  memory.allocate = &allocate_zeros;
  memory.release = [](ParameterMemory const&, void* block) noexcept {
    static_cast<void>(cudaFree(block));
  };
  memory.upload = [](ParameterMemory const& m, void* to, void const* from, std::size_t bytes) {
    copy_now(m, to, from, bytes, cudaMemcpyHostToDevice);
  };
  memory.download = [](ParameterMemory const& m, void* to, void const* from, std::size_t bytes) {
    copy_now(m, to, from, bytes, cudaMemcpyDeviceToHost);
  };
  memory.copy = [](ParameterMemory const& m, void* to, void const* from, std::size_t bytes) {
    if (place.step == nullptr) return copy_now(m, to, from, bytes, cudaMemcpyDefault);
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream()), "copy parameters");
  };
  memory.zero = [](ParameterMemory const&, void* block, std::size_t bytes) noexcept {
    insist([&] { return cudaMemsetAsync(block, 0, bytes, stream()); });
  };
  memory.add = [](ParameterMemory const&, ElementType type, void* sum, void const* more,
                  std::size_t size) {
    if (size != 0)
      check(place.step->kernels->add(type, sum, more, size, stream()), "add gradients");
  };
  memory.sum_squares = [](ParameterMemory const&, ElementType type, void const* gradient,
                          std::size_t size, double* sum) {
    check(
        place.step->kernels->sum_squares(type, gradient, size, sum, place.step->scratch, stream()),
        "sum up the squares of a gradient");
  };
  return memory;
}

/// Host memory for parameters until a program determines which GPU needs them. Those of stages that
/// other processes run stay there. Steps do not use them.
[[nodiscard]] inline ParameterMemory staging_memory() noexcept {
  ParameterMemory memory = page_locked;
  memory.host = &page_locked;
  memory.allocate = [](ParameterMemory const&, std::size_t bytes) -> void* {
    return std::memset(stagger::detail::aligned_memory(bytes).release(), 0, bytes);
  };
  memory.release = [](ParameterMemory const&, void* block) noexcept {
    stagger::detail::AlignedDelete{}(block);
  };
  return memory;
}

/// Moves parameters to the GPU of their first owner; if that is in another process, to a GPU here
/// that uses them; otherwise they stay.
/// @param memories  [GPUs of this process]
[[gnu::cold]] inline void settle_parameters(Streams const& streams,
                                            List<ParameterMemory> const& memories) {
  auto& machine = streams.machine();
  DistributedState const state{machine};
  auto const memory_of = [&](std::size_t cell) {
    std::size_t const rank = state.rank_of(cell);
    return streams.own(rank) ? &memories[streams.gpu_of(rank)] : machine.model.memory;
  };
  each_stage(machine.program(), [&](int, IndexRange cells) {
    std::size_t owner = cells.first;
    while (!streams.own(state.rank_of(owner)) && owner + 1 < cells.last) ++owner;
    for (std::size_t const c : cells) state.settle(c, memory_of(c), memory_of(owner));
  });
}

/// Sends the values and the optimizer state of every layer from the process that updates it. If the
/// state is shared out, each process gets the others' parts in its copies for the host.
/// @param places  [ranks]
/// @param loaded  whether the machine's program was not refused, so that parameters lie as it says
[[gnu::cold]] inline void gather_parameters(Streams const& streams, std::vector<int> const& places,
                                            bool loaded) {
  if (!loaded)
    raise(Errc::bad_configuration,
          "parameters cannot be gathered after a step that was refused, whose program does not say "
          "where they lie; first take one that is not refused");
  auto& machine = streams.machine();
  DistributedState const state{machine};
  auto const& gpus = streams.gpus();
  machine.take_back_shown();
  gpus.select(0);
  Tensor<std::byte> passing;  // for parameters that have no place on this GPU
  auto const broadcast_from_host = [&](std::span<std::byte> block, int root) {
    passing.resize({block.size()});
    if (root == gpus.processes()->rank()) {
      check(cudaMemcpy(passing.data(), block.data(), block.size(), cudaMemcpyHostToDevice),
            "send parameters");
      settle();  // the broadcast's stream does not wait for it
    }
    gpus.processes()->broadcast({passing.data(), block.size()}, root);
    check(cudaMemcpy(block.data(), passing.data(), block.size(), cudaMemcpyDeviceToHost),
          "fetch parameters");
  };
  each_stage(machine.program(), [&](int, IndexRange cells) {
    int const root = places[state.rank_of(cells.first)];
    state.each_layer(cells.first, [&](std::size_t l, auto const*) {
      auto const& parameters = state.parameters(l);
      auto const blocks = parameters.blocks();
      for (std::size_t b = 0; b < (machine.shards() ? 1 : blocks.size()); ++b) {
        if (blocks[b].empty()) continue;
        if (parameters.memory() == machine.model.memory)
          broadcast_from_host(blocks[b], root);
        else
          gpus.processes()->broadcast({blocks[b].data(), blocks[b].size()}, root);
      }
    });
  });
  if (!machine.shards()) return;
  machine.model.show_layers();
  for (std::size_t c = 0; c < machine.program().cells.size(); ++c)
    state.each_layer(c, [&](std::size_t l, auto const*) {
      auto const part = state.part(c, l);
      for (std::size_t s = 0; s < 2 && part.first < part.last; ++s)
        if (auto const block = state.parameters(l).shown_state(s, part); !block.empty())
          broadcast_from_host(block, places[state.rank_of(c)]);
    });
}

}  // namespace stagger::cuda::detail
