// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Parameters in device memory.

#include <cstddef>

#include <stagger/cuda/kernels.hpp>
#include <stagger/parameters/parameter_memory.hpp>

namespace stagger::cuda::detail {

using stagger::detail::ParameterMemory;

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

/// The operations of the engine on parameters on a GPU.
[[nodiscard]] inline ParameterMemory parameter_memory(int device) noexcept {
  ParameterMemory memory{};
  memory.device = device;
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
    if (place.step == nullptr) return copy_now(m, to, from, bytes, cudaMemcpyDeviceToDevice);
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream()), "copy parameters");
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
    check(place.step->kernels->sum_squares(type, gradient, size, sum, stream()),
          "sum up the squares of a gradient");
  };
  return memory;
}

}  // namespace stagger::cuda::detail
