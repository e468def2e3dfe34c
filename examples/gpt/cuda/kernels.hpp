// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The kernels, as functions that code for the host can call. Each function enqueues its
/// kernel on the stream of the stage that calls it.

#include <cstddef>
#include <cstdint>

#include <stagger/cuda/kernels.hpp>

namespace gpt::gpu {

/// For T = float and __nv_bfloat16. Arrays are in device memory, matrices are row-major; bodies.hpp
/// explains the arguments.
template <class T> struct Kernels {
  static void norm(T const* x, float const* gain, float const* bias, T* y, T* normal, float* scale,
                   std::size_t rows, std::size_t width);
  static void norm_output(T const* normal, float const* gain, float const* bias, T* y,
                          std::size_t rows, std::size_t width);
  static void norm_backward(T const* dy, T const* residual, T const* normal, float const* scale,
                            float const* gain, T* dx, std::size_t rows, std::size_t width);
  static void norm_gradients(T const* dy, T const* normal, float* gain_gradient,
                             float* bias_gradient, std::size_t rows, std::size_t width);
  static void add_columns(T const* d, float* sum, std::size_t rows, std::size_t width);
  static void add_bias(T const* x, float const* bias, T* y, std::size_t rows, std::size_t width);
  static void causal_softmax(T* share, std::size_t rows, std::size_t length);
  static void softmax_backward(T const* share, T* slopes, std::size_t rows, std::size_t length,
                               float scale);
  static void gelu(T* slope, T* hidden, std::size_t size);
  static void multiply(T* to, T const* by, std::size_t size);
  static void cast(float const* from, T* to, std::size_t size);
  static void embed(std::uint8_t const* tokens, float const* token, float const* position, T* y,
                    std::size_t sequences, std::size_t length, std::size_t width);
  static void embed_gradients(std::uint8_t const* tokens, T const* dy, float* token,
                              float* position, std::size_t sequences, std::size_t length,
                              std::size_t width);
  /// @param row_losses  [rows] scratch
  /// @param loss        the sum of the losses is added to it
  /// @param dy          may be null
  static void cross_entropy(T const* y, std::uint8_t const* target, double* row_losses,
                            double* loss, T* dy, std::size_t rows, std::size_t classes,
                            double scale);
};

/// to[i] += more[i].
void add(float* to, float const* more, std::size_t size);

}  // namespace gpt::gpu
