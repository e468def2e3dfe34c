// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Memory that kernels of one stream use between them.

#include <cstddef>
#include <map>
#include <mutex>
#include <utility>

#include <cuda_runtime_api.h>

namespace gpt::gpu {

inline constexpr std::size_t parts_of_squares = 512;

/// Memory for partial sums, of each stream of each GPU, made when it is first asked for. CUDA may
/// give the handle of a stream that is gone to a stream of another GPU.
/// @return null where there is no such memory
inline double* partial_sums(cudaStream_t stream) {
  static std::mutex mutex;
  static auto& all = *new std::map<std::pair<int, cudaStream_t>, double*>;  // as long as the GPU's
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
