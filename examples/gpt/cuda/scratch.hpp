// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Scratch memory for the kernels of one stream.

#include <cstddef>
#include <map>
#include <mutex>
#include <utility>

#include <cuda_runtime_api.h>

namespace gpt::gpu {

inline constexpr std::size_t parts_of_squares = 512;

/// Memory for partial sums, for each stream of each GPU, allocated at its first use. It is keyed by
/// the GPU too, since CUDA may reuse the handle of a destroyed stream for a stream of another GPU.
/// @return null if it cannot be allocated
inline double* partial_sums(cudaStream_t stream) {
  static std::mutex mutex;
  static auto& all = *new std::map<std::pair<int, cudaStream_t>, double*>;  // never destroyed
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return nullptr;
  std::lock_guard const lock(mutex);
  double*& sums = all[{device, stream}];
  if (sums == nullptr &&
      cudaMalloc(reinterpret_cast<void**>(&sums), parts_of_squares * sizeof(double)) != cudaSuccess)
    sums = nullptr;
  return sums;
}

}  // namespace gpt::gpu
