// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   What several tests on a GPU use: stages of one kernel, and their inputs.

#include <cstddef>
#include <vector>

#include <stagger/cuda/tensor.hpp>
#include <stagger/model/context.hpp>
#include <stagger/model/stage.hpp>

#include "kernels.hpp"

struct AddOne {
  using Input = stagger::cuda::Tensor<>;
  using Output = stagger::cuda::Tensor<>;
  void forward(stagger::Context&, Input const& x, Output& y, stagger::NothingSaved&) {
    y.resize_like(x);
    gpu_kernels::add_one(x.data(), y.data(), x.size(), stagger::cuda::stream());
  }
  void backward_input(stagger::Context&, Input const&, Output const&, Input&,
                      stagger::NothingSaved&) {}
};

/// Keeps its stream busy until the host sets `open`.
struct Spin {
  using Input = stagger::cuda::Tensor<>;
  using Output = stagger::cuda::Tensor<>;
  int const* open;
  void forward(stagger::Context&, Input const& x, Output& y, stagger::NothingSaved&) {
    y.resize_like(x);
    gpu_kernels::spin(open, stagger::cuda::stream());
  }
  void backward_input(stagger::Context&, Input const&, Output const&, Input&,
                      stagger::NothingSaved&) {}
};

/// Tensors of ones on the first GPU.
inline std::vector<stagger::cuda::Tensor<>> inputs(std::size_t count, std::size_t size) {
  stagger::cuda::select_device(0);
  std::vector<float> const ones(size, 1.0F);
  std::vector<stagger::cuda::Tensor<>> all;
  for (std::size_t i = 0; i < count; ++i) {
    all.emplace_back(std::initializer_list<std::size_t>{size});
    all.back().upload(ones);
  }
  stagger::cuda::check(cudaStreamSynchronize(nullptr), "upload");
  return all;
}
