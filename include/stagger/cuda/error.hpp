// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Errors of the CUDA runtime: what was done, CUDA's name and text for the error, and a
///         remedy.

#if !__has_include(<cuda_runtime_api.h>)
#error \
    "stagger/cuda needs the CUDA toolkit's headers: link stagger::cuda, or add the toolkit's include folder"
#endif
#include <cuda_runtime_api.h>

#include <string>

#include <stagger/core/error.hpp>

namespace stagger::cuda {

/// An error of the CUDA runtime. `code()` is Errc::device.
class Error : public stagger::Error {
 public:
  Error(cudaError_t result, std::string const& sentence)
      : stagger::Error(Errc::device, sentence), result_(result) {}

  /// CUDA's own code.
  [[nodiscard]] cudaError_t result() const noexcept { return result_; }

 private:
  cudaError_t result_;
};

/// Throws such an error with a sentence made of words and numbers.
template <class... T>
[[noreturn]] [[gnu::cold]] void raise(cudaError_t result, T const&... pieces) {
  throw Error(result, text(pieces...));
}

namespace detail {

[[gnu::cold]] inline char const* remedy(cudaError_t result) noexcept {
  switch (result) {
    case cudaErrorMemoryAllocation:
      return "use smaller microbatches, fewer in flight or Options::recompute";
    case cudaErrorInsufficientDriver:
    case cudaErrorNoDevice:
      return "run on a machine with an NVIDIA GPU and a driver as new as the toolkit, or use "
             "host::Threads";
    case cudaErrorInvalidDevice:
      return "choose a device below cuda::device_count()";
    case cudaErrorStreamCaptureUnsupported:
    case cudaErrorStreamCaptureInvalidated:
    case cudaErrorStreamCaptureIsolation:
    case cudaErrorStreamCaptureUnjoined:
      return "a stage allocates, frees, synchronises or leaves its stream while it is captured; "
             "let "
             "it allocate in its first step, or leave the graph off";
    default:
      return "what the device computed in this process is lost; start anew from the last "
             "checkpoint";
  }
}

[[noreturn]] [[gnu::cold]] inline void fail(cudaError_t result, char const* what) {
  static_cast<void>(cudaGetLastError());  // otherwise the next check would report it again
  raise(result, "CUDA could not ", what, ": ", cudaGetErrorName(result), " (",
        cudaGetErrorString(result), "); ", remedy(result));
}

}  // namespace detail

/// Throws unless a call succeeded.
/// @param what  what was done, as in "create a stream"
/// @throws Error
inline void check(cudaError_t result, char const* what) {
  if (result != cudaSuccess) [[unlikely]]
    detail::fail(result, what);
}

}  // namespace stagger::cuda
