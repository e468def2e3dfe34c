// SPDX-License-Identifier: Apache-2.0
// The library's kernels for parameters on the stand-in: the same bodies, on teams of one thread.

#include <stagger/cuda/detail/parameter_bodies.hpp>

#include <cstddef>

#include "stand_in.hpp"

namespace stagger::cuda::detail {
namespace {

struct OneThread {
  [[nodiscard]] std::size_t lane() const { return 0; }
  [[nodiscard]] std::size_t lanes() const { return 1; }
  [[nodiscard]] double sum(double x) const { return x; }
};

}  // namespace

struct OnGpu {
  template <class Body>
  static cudaError_t teams(cudaStream_t stream, std::size_t teams, Body body) {
    return static_cast<cudaError_t>(cuda_stand_in::launch(stream, [body, teams] {
      for (std::size_t number = 0; number < teams; ++number) body(OneThread{}, number, teams);
    }));
  }
};

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
