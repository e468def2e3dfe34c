// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   What must hold on a thread, and of a tensor, while libtorch works for the engine.

#include <stagger/core/requirements.hpp>

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

namespace stagger::torch::detail {

/// Lets libtorch set up the calling thread, once: an unknown thread would run products on OpenMP's
/// default number of threads, whatever at::set_num_threads said, and give other bits.
inline void know_thread() {
  thread_local bool const known = (at::init_num_threads(), true);
  static_cast<void>(known);
}

/// Whether a tensor is a parameter, or a view of one.
[[nodiscard]] inline bool shows_parameter(at::Tensor const& tensor) {
  if (!tensor.requires_grad()) return false;
  if (tensor.is_leaf()) return true;
  return tensor.is_view() && tensor._base().is_leaf();
}

/// The tensor, copied if it shares memory with one of the others: what a stage hands on must not
/// change with what another stage owns.
template <class... Other>
[[nodiscard]] at::Tensor of_its_own(at::Tensor tensor, Other const&... other) {
  bool const shares = ((other.defined() && tensor.is_alias_of(other)) || ...);
  return shares ? tensor.clone() : tensor;
}

}  // namespace stagger::torch::detail
