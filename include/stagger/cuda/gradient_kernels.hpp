// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The kernels for gradients, and for values that members of a group add up, which a device
///         policy is given.

#include <cstddef>
#include <cstdint>

#include <stagger/cuda/error.hpp>
#include <stagger/model/parameter.hpp>

namespace stagger::cuda {

struct GradientScale;
struct StepNumbers;

/// A block that is added to another one. The first elements of two rows are so many elements apart.
struct AddedBlock {
  void* sum = nullptr;
  void const* more = nullptr;
  std::size_t sum_stride = 0;
  std::size_t more_stride = 0;
  std::size_t rows = 0;
  std::size_t columns = 0;
};

/// Kernels for gradients, each a function that launches one on a stream and returns CUDA's result.
/// `sum_squares` and `scale` are needed if gradients are clipped, and to see whether they are
/// finite; `add` if a stage has two owners or replicas, and `add_block` if groups of ranks share
/// layers.
struct ParameterKernels {
  /// sum[i] += more[i] for i < size. For replicas it is called for a part of a parameter at a time,
  /// each part in the order of replicas.
  cudaError_t (*add)(ElementType, void* sum, void const* more, std::size_t size,
                     cudaStream_t) = nullptr;
  /// *sum = the sum of gradient[i]^2 for i < size.
  /// @param scratch  [scratch_size] in device memory; nothing else on the GPU uses it meanwhile
  cudaError_t (*sum_squares)(ElementType, void const* gradient, std::size_t size, double* sum,
                             double* scratch, cudaStream_t) = nullptr;
  /// One thread calls scale->find(sums, count, clip_norm).
  cudaError_t (*scale)(double const* sums, std::size_t count, double clip_norm,
                       GradientScale* scale, cudaStream_t) = nullptr;
  /// One thread calls scale->correct(*numbers). For NonFinite::skip, and for several processes.
  cudaError_t (*begin)(GradientScale const* scale, StepNumbers* numbers, cudaStream_t) = nullptr;
  std::size_t scratch_size = 0;   ///< numbers of scratch memory that sum_squares needs
  bool finds_non_finite = false;  ///< `scale` calls GradientScale::find; needed unless
                                  ///< Options::non_finite is NonFinite::ignore
  /// sum[r][c] += more[r][c] for each row and column of the block, of values between layers.
  cudaError_t (*add_block)(ElementType, AddedBlock const&, cudaStream_t) = nullptr;
};

namespace detail {

/// A rank's numbers while its work is enqueued.
struct StepPlace {
  StepNumbers* numbers = nullptr;  // in device memory, as the next four
  void const* optimizer = nullptr;
  GradientScale* scale = nullptr;
  double* losses = nullptr;   // [microbatches] of the replica
  double* scratch = nullptr;  // [kernels->scratch_size]
  std::int64_t steps = 0;     // the host's copy of numbers->steps while the work is enqueued
  ParameterKernels const* kernels = nullptr;
  cudaError_t* refused = nullptr;  // the error of a call that CUDA refused after the step was
                                   // decided
  bool* loss_on_device = nullptr;
};

}  // namespace detail
}  // namespace stagger::cuda
