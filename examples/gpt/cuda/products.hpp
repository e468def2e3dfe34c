// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Matrix products by cuBLAS, and scratch memory that the layers of a rank share.

#include <cstddef>
#include <mutex>
#include <string>
#include <type_traits>
#include <unordered_map>

#include <cublas_v2.h>
#include <cuda_bf16.h>

#include <stagger/cuda/tensor.hpp>

namespace gpt::gpu {

/// Precision of activations and products. Parameters are floats in all three.
enum class Precision { fp32, tf32, bf16 };

/// @param name  fp32, tf32 or bf16
[[nodiscard]] inline Precision precision_of(std::string const& name) {
  return name == "tf32" ? Precision::tf32 : name == "bf16" ? Precision::bf16 : Precision::fp32;
}

/// Whether a product uses a matrix or its transpose.
enum class Form : bool { as_is, transposed };

/// A row-major matrix, or a batch of them.
template <class T> struct Matrix {
  T* data;
  std::size_t columns;     ///< distance of rows in memory
  std::size_t stride = 0;  ///< distance of the matrices of a batch
  Form form = Form::as_is;
  [[nodiscard]] Matrix transposed() const { return {data, columns, stride, Form::transposed}; }
};

/// Throws if a call of cuBLAS failed.
inline void check(cublasStatus_t status, char const* what) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw stagger::Error(stagger::Errc::device,
                         std::string("cuBLAS could not ") + what + ": status " +
                             std::to_string(static_cast<int>(status)) +
                             "; use --precision fp32, or smaller microbatches");
}

/// The cuBLAS handle and scratch memory of one rank, for use on its stream only.
template <class T> struct Workspace {
  stagger::cuda::Tensor<T> normal, wide, narrow, shares, weight;
  stagger::cuda::Tensor<float> sums;
  stagger::cuda::Tensor<double> losses;
  stagger::cuda::Tensor<std::byte>
      cublas_workspace;  // for cuBLAS, which then allocates nothing itself
  cublasHandle_t handle = nullptr;

  Workspace() = default;
  Workspace(Workspace const&) = delete;
  Workspace& operator=(Workspace const&) = delete;
  ~Workspace() {
    if (handle != nullptr) static_cast<void>(cublasDestroy(handle));
  }

  /// c = alpha a b + beta c, for each matrix of a batch.
  /// @shape a, b, c  [rows][inner], [inner][columns], [rows][columns] after transposition
  template <class C>
  void product(Matrix<T const> a, Matrix<T const> b, Matrix<C> c, std::size_t rows,
               std::size_t columns, std::size_t inner, float alpha, float beta,
               std::size_t batch = 1) {
    auto const n = [](std::size_t count) { return static_cast<int>(count); };
    auto const stride = [](std::size_t count) { return static_cast<long long>(count); };
    auto const form = [](auto const& m) {
      return m.form == Form::as_is ? CUBLAS_OP_N : CUBLAS_OP_T;
    };
    constexpr auto type_a = std::is_same_v<T, float> ? CUDA_R_32F : CUDA_R_16BF;
    constexpr auto type_c = std::is_same_v<C, float> ? CUDA_R_32F : CUDA_R_16BF;
    // cuBLAS is column-major, so for it all three matrices are transposed.
    check(cublasGemmStridedBatchedEx(handle, form(b), form(a), n(columns), n(rows), n(inner),
                                     &alpha, b.data, type_a, n(b.columns), stride(b.stride), a.data,
                                     type_a, n(a.columns), stride(a.stride), &beta, c.data, type_c,
                                     n(c.columns), stride(c.stride), n(batch), compute,
                                     CUBLAS_GEMM_DEFAULT),
          "multiply matrices");
  }

  cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
};

/// The `Workspace` of each rank, found by its stream.
template <class T> class Workspaces {
 public:
  explicit Workspaces(Precision precision) : precision_(precision) {}

  /// The `Workspace` of the rank whose stage is running on this thread.
  [[nodiscard]] Workspace<T>& current() {
    std::lock_guard const lock(mutex_);
    Workspace<T>& workspace = all_[stagger::cuda::stream()];
    if (workspace.handle == nullptr) prepare(workspace);
    return workspace;
  }

 private:
  void prepare(Workspace<T>& workspace) {
    constexpr std::size_t workspace_bytes = std::size_t{32} << 20U;
    workspace.cublas_workspace.resize({workspace_bytes});
    check(cublasCreate(&workspace.handle), "begin");
    check(cublasSetStream(workspace.handle, stagger::cuda::stream()), "take a stream");
    check(cublasSetWorkspace(workspace.handle, workspace.cublas_workspace.data(), workspace_bytes),
          "take its workspace");
    if (precision_ == Precision::tf32) workspace.compute = CUBLAS_COMPUTE_32F_FAST_TF32;
  }
  Precision precision_;
  std::mutex mutex_;
  std::unordered_map<cudaStream_t, Workspace<T>> all_;
};

}  // namespace gpt::gpu
