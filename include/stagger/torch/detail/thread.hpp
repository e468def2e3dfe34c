// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   What must hold on a thread, and of a tensor, while libtorch works for the engine.

#include <stagger/core/requirements.hpp>

#include <vector>

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

namespace stagger::torch::detail {

/// Lets libtorch set up the calling thread, once: an unknown thread would run products on OpenMP's
/// default number of threads, whatever at::set_num_threads said, and give other bits.
inline void know_thread() {
  thread_local bool const known = (at::init_num_threads(), true);
  static_cast<void>(known);
}

/// Whether a tensor shares memory with one of the others.
[[nodiscard]] inline bool shares_with_any(at::Tensor const& tensor,
                                          std::vector<at::Tensor> const& others) {
  bool shares = false;
  for (at::Tensor const& other : others)
    shares = shares || (other.defined() && tensor.is_alias_of(other));
  return shares;
}

/// The tensor, copied if it shares memory with one of the others: what a stage hands on must not
/// change with what another stage owns.
template <class... Other>
[[nodiscard]] at::Tensor of_its_own(at::Tensor tensor, Other const&... other) {
  bool const shares = ((other.defined() && tensor.is_alias_of(other)) || ...);
  return shares ? tensor.clone() : tensor;
}

}  // namespace stagger::torch::detail
