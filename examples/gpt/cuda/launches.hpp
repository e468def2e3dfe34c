// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The functions of kernels.hpp, in terms of three functions that the including file
/// defines: `run_rows(stream, count, body)` and `run_columns` call body(team, i), `run_elements`
/// calls body(i), for i < count. Included once for each way of running bodies.

#include <cstddef>

#include <stagger/cuda/tensor.hpp>

#include "bodies.hpp"
#include "kernels.hpp"

namespace gpt::gpu {

namespace detail {

inline void require(cudaError_t result) { stagger::cuda::check(result, "launch a kernel"); }
inline cudaStream_t here() { return stagger::cuda::stream(); }

}  // namespace detail

template <class T>
void Kernels<T>::norm(T const* x, float const* gain, float const* bias, T* y, T* normal,
                      float* scale, std::size_t rows, std::size_t width) {
  detail::require(
      run_rows(detail::here(), rows, NormForward<T>{x, gain, bias, y, normal, scale, width}));
}
template <class T>
void Kernels<T>::norm_output(T const* normal, float const* gain, float const* bias, T* y,
                             std::size_t rows, std::size_t width) {
  detail::require(run_rows(detail::here(), rows, NormOutput<T>{normal, gain, bias, y, width}));
}
template <class T>
void Kernels<T>::norm_backward(T const* dy, T const* residual, T const* normal, float const* scale,
                               float const* gain, T* dx, std::size_t rows, std::size_t width) {
  detail::require(run_rows(detail::here(), rows,
                           NormBackward<T>{dy, residual, normal, scale, gain, dx, width}));
}
template <class T>
void Kernels<T>::norm_gradients(T const* dy, T const* normal, float* gain_gradient,
                                float* bias_gradient, std::size_t rows, std::size_t width) {
  detail::require(
      run_columns(detail::here(), width,
                  NormGradients<T>{dy, normal, gain_gradient, bias_gradient, rows, width}));
}
template <class T>
void Kernels<T>::add_columns(T const* d, float* sum, std::size_t rows, std::size_t width) {
  detail::require(run_columns(detail::here(), width, AddColumn<T>{d, sum, rows, width}));
}
template <class T>
void Kernels<T>::add_bias(T const* x, float const* bias, T* y, std::size_t rows,
                          std::size_t width) {
  detail::require(run_rows(detail::here(), rows, AddBias<T>{x, bias, y, width}));
}
template <class T> void Kernels<T>::causal_softmax(T* share, std::size_t rows, std::size_t length) {
  detail::require(run_rows(detail::here(), rows, CausalSoftmax<T>{share, length}));
}
template <class T>
void Kernels<T>::softmax_backward(T const* share, T* slopes, std::size_t rows, std::size_t length,
                                  float scale) {
  detail::require(run_rows(detail::here(), rows, SoftmaxBackward<T>{share, slopes, length, scale}));
}
template <class T> void Kernels<T>::gelu(T* slope, T* hidden, std::size_t size) {
  detail::require(run_elements(detail::here(), size, Gelu<T>{slope, hidden}));
}
template <class T> void Kernels<T>::multiply(T* to, T const* by, std::size_t size) {
  detail::require(run_elements(detail::here(), size, Multiply<T>{to, by}));
}
template <class T> void Kernels<T>::cast(float const* from, T* to, std::size_t size) {
  detail::require(run_elements(detail::here(), size, Cast<T>{from, to}));
}
template <class T>
void Kernels<T>::embed(std::uint8_t const* tokens, float const* token, float const* position, T* y,
                       std::size_t sequences, std::size_t length, std::size_t width) {
  detail::require(run_elements(detail::here(), sequences * length * width,
                               Embed<T>{tokens, token, position, y, length, width}));
}
template <class T>
void Kernels<T>::embed_gradients(std::uint8_t const* tokens, T const* dy, float* token,
                                 float* position, std::size_t sequences, std::size_t length,
                                 std::size_t width) {
  detail::require(run_rows(detail::here(), 256,
                           TokenGradient<T>{tokens, dy, token, sequences * length, width}));
  detail::require(run_elements(detail::here(), length * width,
                               PositionGradient<T>{dy, position, sequences, length * width}));
}
template <class T>
void Kernels<T>::cross_entropy(T const* y, std::uint8_t const* target, double* row_losses,
                               double* loss, T* dy, std::size_t rows, std::size_t classes,
                               double scale) {
  detail::require(
      run_rows(detail::here(), rows,
               CrossEntropyRow<T>{y, target, row_losses, dy, classes, static_cast<float>(scale)}));
  detail::require(run_rows(detail::here(), 1, Sum{row_losses, loss, rows}));
}

void add(float* to, float const* more, std::size_t size) {
  detail::require(run_elements(detail::here(), size, Add<float>{to, more}));
}

}  // namespace gpt::gpu
