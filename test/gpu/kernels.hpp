// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Kernels of the GPU tests, as functions that a host compiler can call.

#include <cstddef>
#include <cstdint>

#include <cuda_runtime_api.h>

namespace gpu_kernels {

/// Does nothing.
void empty(cudaStream_t stream);

/// y[i] = x[i] + 1 for i < size.
void add_one(float const* x, float* y, std::size_t size, cudaStream_t stream);

/// Spins until `*open`, in page-locked host memory, is not 0.
void spin(int const* open, cudaStream_t stream);

/// Writes the device's clock, in nanoseconds, at its start and at its end.
void stamp(std::uint64_t* start_and_end_ns, cudaStream_t stream);

}  // namespace gpu_kernels
