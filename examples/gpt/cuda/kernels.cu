// SPDX-License-Identifier: Apache-2.0
// Kernels that run the bodies: a block for each row, eight threads for each column, one thread for
// each element. The kernels for parameters are the library's.

#include <cstddef>

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <stagger/cuda/parameter_kernels.cuh>

namespace gpt::gpu {
namespace {

constexpr unsigned block_size = 256;
constexpr unsigned warp = 32;

/// A team: all threads of a block.
class Block {
 public:
  __device__ std::size_t lane() const { return threadIdx.x; }
  __device__ std::size_t lanes() const { return blockDim.x; }
  template <class N> __device__ N sum(N x) const {
    return reduce(x, [](N a, N b) { return a + b; });
  }
  __device__ float largest(float x) const {
    return reduce(x, [](float a, float b) { return a > b ? a : b; });
  }

 private:
  /// Returns the result to every thread; the order of operations is always the same.
  template <class N, class Combine> __device__ static N reduce(N x, Combine combine) {
    __shared__ N shared[block_size / warp];
    for (unsigned offset = warp / 2; offset != 0; offset /= 2)
      x = combine(x, __shfl_xor_sync(~0U, x, offset));
    __syncthreads();  // all threads have read the last result
    if (threadIdx.x % warp == 0) shared[threadIdx.x / warp] = x;
    __syncthreads();
    x = shared[0];
    for (unsigned w = 1; w < block_size / warp; ++w) x = combine(x, shared[w]);
    return x;
  }
};

/// A team: the eight threads of a column; a block has 32 columns. Threads of a column that does not
/// exist only take part in __syncthreads().
class Column {
 public:
  __device__ explicit Column(bool exists) : exists_(exists) {}
  __device__ std::size_t lane() const { return exists_ ? threadIdx.y : ~std::size_t{0} / 2; }
  __device__ std::size_t lanes() const { return block_size / warp; }
  template <class N> __device__ N sum(N x) const {
    __shared__ N shared[block_size / warp][warp];
    __syncthreads();
    shared[threadIdx.y][threadIdx.x] = x;
    __syncthreads();
    x = shared[0][threadIdx.x];
    for (unsigned w = 1; w < block_size / warp; ++w) x += shared[w][threadIdx.x];
    return x;
  }

 private:
  bool exists_;
};

template <class Body> __global__ void rows_kernel(Body body, std::size_t count) {
  for (std::size_t row = blockIdx.x; row < count; row += gridDim.x) body(Block{}, row);
}

template <class Body> __global__ void columns_kernel(Body body, std::size_t count) {
  std::size_t const c = blockIdx.x * std::size_t{warp} + threadIdx.x;
  body(Column(c < count), c < count ? c : 0);
}

template <class Body> __global__ void elements_kernel(Body body, std::size_t count) {
  for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < count;
       i += std::size_t{gridDim.x} * blockDim.x)
    body(i);
}

unsigned blocks_for(std::size_t count) {
  constexpr std::size_t most = 1U << 16U;
  return static_cast<unsigned>(count < most ? count : most);
}

template <class Body> cudaError_t run_rows(cudaStream_t stream, std::size_t count, Body body) {
  if (count == 0) return cudaSuccess;
  rows_kernel<<<blocks_for(count), block_size, 0, stream>>>(body, count);
  return cudaGetLastError();
}
template <class Body> cudaError_t run_columns(cudaStream_t stream, std::size_t count, Body body) {
  if (count == 0) return cudaSuccess;
  dim3 const block(warp, block_size / warp);
  columns_kernel<<<static_cast<unsigned>((count + warp - 1) / warp), block, 0, stream>>>(body,
                                                                                         count);
  return cudaGetLastError();
}
template <class Body> cudaError_t run_elements(cudaStream_t stream, std::size_t count, Body body) {
  if (count == 0) return cudaSuccess;
  elements_kernel<<<blocks_for((count + block_size - 1) / block_size), block_size, 0, stream>>>(
      body, count);
  return cudaGetLastError();
}

}  // namespace
}  // namespace gpt::gpu

#include "launches.hpp"

template struct gpt::gpu::Kernels<float>;
template struct gpt::gpu::Kernels<__nv_bfloat16>;
