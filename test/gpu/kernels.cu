// SPDX-License-Identifier: Apache-2.0
#include "kernels.hpp"

#include <stagger/cuda/parameter_kernels.cuh>

namespace {

__global__ void empty_kernel() {}

__global__ void add_one_kernel(float const* x, float* y, std::size_t size) {
  for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < size;
       i += std::size_t{gridDim.x} * blockDim.x)
    y[i] = x[i] + 1;
}

__global__ void spin_kernel(int const volatile* open) {
  while (*open == 0) __nanosleep(1000);
}

__device__ std::uint64_t now_ns() {
  std::uint64_t ns;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
  return ns;
}

__global__ void stamp_kernel(std::uint64_t* start_and_end_ns) {
  start_and_end_ns[0] = now_ns();
  start_and_end_ns[1] = now_ns();
}

}  // namespace

namespace gpu_kernels {

void empty(cudaStream_t stream) { empty_kernel<<<1, 1, 0, stream>>>(); }
void add_one(float const* x, float* y, std::size_t size, cudaStream_t stream) {
  add_one_kernel<<<64, 256, 0, stream>>>(x, y, size);
}
void spin(int const* open, cudaStream_t stream) { spin_kernel<<<1, 1, 0, stream>>>(open); }
void stamp(std::uint64_t* start_and_end_ns, cudaStream_t stream) {
  stamp_kernel<<<1, 1, 0, stream>>>(start_and_end_ns);
}

}  // namespace gpu_kernels
