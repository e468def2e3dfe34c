// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The library's kernels for parameters on a GPU: `cuda::parameter_kernels`, which adds up,
///         squares and clips gradients, and `cuda::LaunchUpdate`, which updates by optimizer::Sgd or
///         optimizer::AdamW. A .cu file that includes this header, and has nothing else, brings them
///         into the program.

#ifndef __CUDACC__
#error \
    "stagger: <stagger/cuda/parameter_kernels.cuh> has kernels, which nvcc compiles: include it in one .cu file of the program, and <stagger/cuda/gpus.hpp> everywhere else"
#endif

#include <cstddef>

#include <stagger/cuda/detail/parameter_bodies.hpp>

namespace stagger::cuda::detail {

/// A team: all threads of a block.
class BlockOfThreads {
 public:
  static constexpr unsigned threads = 256;

  __device__ std::size_t lane() const { return threadIdx.x; }
  __device__ std::size_t lanes() const { return threads; }
  /// Gives every thread the sum, which is always added up in the same order.
  __device__ double sum(double x) const {
    constexpr unsigned warp = 32;
    __shared__ double of_warps[threads / warp];
    for (unsigned offset = warp / 2; offset != 0; offset /= 2) x += __shfl_xor_sync(~0U, x, offset);
    __syncthreads();  // all threads have read the last sum
    if (threadIdx.x % warp == 0) of_warps[threadIdx.x / warp] = x;
    __syncthreads();
    x = of_warps[0];
    for (unsigned w = 1; w < threads / warp; ++w) x += of_warps[w];
    return x;
  }
};

template <class Body> __global__ void run_teams(Body body) {
  body(BlockOfThreads{}, blockIdx.x, gridDim.x);
}

struct OnGpu {
  /// Enqueues body(team, number, teams) for each number < teams.
  template <class Body>
  static cudaError_t teams(cudaStream_t stream, std::size_t teams, Body body) {
    run_teams<<<static_cast<unsigned>(teams), BlockOfThreads::threads, 0, stream>>>(body);
    return cudaGetLastError();
  }
};

// Definitions that may be in several object files of a program.
template struct LibraryKernels<OnGpu>;
template cudaError_t LibraryKernels<OnGpu>::update(Update<optimizer::Sgd, float> const&,
                                                   cudaStream_t);
template cudaError_t LibraryKernels<OnGpu>::update(Update<optimizer::Sgd, double> const&,
                                                   cudaStream_t);
template cudaError_t LibraryKernels<OnGpu>::update(Update<optimizer::AdamW, float> const&,
                                                   cudaStream_t);
template cudaError_t LibraryKernels<OnGpu>::update(Update<optimizer::AdamW, double> const&,
                                                   cudaStream_t);

}  // namespace stagger::cuda::detail
