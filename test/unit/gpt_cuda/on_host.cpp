// SPDX-License-Identifier: Apache-2.0
// The transformer's kernels and products for the stand-in: the same bodies, on teams of one.

#include <cstddef>
#include <utility>

#include <cublas_v2.h>
#include <cuda_bf16.h>

#include "cuda_stand_in/stand_in.hpp"

namespace gpt::gpu {
namespace {

template <class Kernel> cudaError_t launch(cudaStream_t stream, Kernel kernel) {
  return static_cast<cudaError_t>(cuda_stand_in::launch(stream, std::move(kernel)));
}
template <class Body> cudaError_t run_rows(cudaStream_t stream, std::size_t count, Body body);
template <class Body> cudaError_t run_columns(cudaStream_t stream, std::size_t count, Body body);
template <class Body> cudaError_t run_elements(cudaStream_t stream, std::size_t count, Body body) {
  return launch(stream, [body, count] {
    for (std::size_t i = 0; i < count; ++i) body(i);
  });
}

}  // namespace
}  // namespace gpt::gpu

#include "cuda/launches.hpp"

namespace gpt::gpu {
namespace {

template <class Body> cudaError_t run_rows(cudaStream_t stream, std::size_t count, Body body) {
  return launch(stream, [body, count] {
    for (std::size_t i = 0; i < count; ++i) body(OneThread{}, i);
  });
}
template <class Body> cudaError_t run_columns(cudaStream_t stream, std::size_t count, Body body) {
  return run_rows(stream, count, body);
}

}  // namespace
}  // namespace gpt::gpu

template struct gpt::gpu::Kernels<float>;
template struct gpt::gpu::Kernels<__nv_bfloat16>;

// --- what is used of cuBLAS
// -----------------------------------------------------------------------

struct cublasContext {
  cudaStream_t stream = nullptr;
};

namespace {

struct Read {
  void const* data;
  cudaDataType type;
  [[nodiscard]] float operator[](std::ptrdiff_t i) const {
    return type == CUDA_R_32F ? static_cast<float const*>(data)[i]
                              : static_cast<float>(static_cast<__nv_bfloat16 const*>(data)[i]);
  }
};

}  // namespace

extern "C" {

cublasStatus_t cublasCreate_v2(cublasHandle_t* handle) {
  *handle = new cublasContext;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasDestroy_v2(cublasHandle_t handle) {
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream) {
  handle->stream = stream;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t, void*, std::size_t) {
  return CUBLAS_STATUS_SUCCESS;
}

/// Column by column, as cuBLAS documents it.
cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t handle, cublasOperation_t form_a,
                                          cublasOperation_t form_b, int m, int n, int k,
                                          void const* alpha, void const* a, cudaDataType type_a,
                                          int lda, long long stride_a, void const* b,
                                          cudaDataType type_b, int ldb, long long stride_b,
                                          void const* beta, void* c, cudaDataType type_c, int ldc,
                                          long long stride_c, int batch, cublasComputeType_t,
                                          cublasGemmAlgo_t) {
  bool const plain_a = form_a == CUBLAS_OP_N;
  bool const plain_b = form_b == CUBLAS_OP_N;
  if (lda < (plain_a ? m : k) || ldb < (plain_b ? k : n) || ldc < m || m <= 0 || n <= 0 || k <= 0)
    return CUBLAS_STATUS_INVALID_VALUE;
  auto const work = [=, factor = *static_cast<float const*>(alpha),
                     keep = *static_cast<float const*>(beta)] {
    Read const from_a{a, type_a};
    Read const from_b{b, type_b};
    for (long long s = 0; s < batch; ++s)
      for (int column = 0; column < n; ++column)
        for (int row = 0; row < m; ++row) {
          float sum = 0;
          for (int i = 0; i < k; ++i)
            sum += from_a[s * stride_a + (plain_a ? row + static_cast<long long>(i) * lda
                                                  : i + static_cast<long long>(row) * lda)] *
                   from_b[s * stride_b + (plain_b ? i + static_cast<long long>(column) * ldb
                                                  : column + static_cast<long long>(i) * ldb)];
          long long const at = s * stride_c + row + static_cast<long long>(column) * ldc;
          float const before = keep == 0 ? 0 : Read{c, type_c}[at];
          float const value = factor * sum + keep * before;
          if (type_c == CUDA_R_32F)
            static_cast<float*>(c)[at] = value;
          else
            static_cast<__nv_bfloat16*>(c)[at] = __nv_bfloat16(value);
        }
  };
  return cuda_stand_in::launch(handle->stream, work) == 0 ? CUBLAS_STATUS_SUCCESS
                                                          : CUBLAS_STATUS_EXECUTION_FAILED;
}

}  // extern "C"
