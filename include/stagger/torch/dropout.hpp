// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Dropout whose stages need not wait for each other.

#include <ATen/ops/empty_like.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/pimpl.h>

#include <stagger/core/error.hpp>
#include <stagger/torch/detail/random.hpp>

namespace stagger::torch {

/// What `torch::nn::Dropout` does, with a generator of its own for each microbatch. That of libtorch
/// draws from the global generator, which one stage uses at a time. Outside of a stage this one
/// draws from it, too.
class DropoutImpl : public ::torch::nn::Cloneable<DropoutImpl> {
 public:
  /// @param rate  the probability of an element to become 0
  /// @throws Error  bad_configuration for one that is not between 0 and 1
  explicit DropoutImpl(double rate = 0.5) : rate_(rate) {
    if (!(rate >= 0 && rate <= 1))
      raise(Errc::bad_configuration, "a dropout rate of ", rate,
            " is no probability; give one from 0 to 1");
  }
  void reset() override {}
  at::Tensor forward(at::Tensor const& x) {
    if (!is_training() || rate_ == 0) return x;
    if (rate_ == 1) return x * at::zeros({}, x.options());
    at::Tensor kept = at::empty_like(x).bernoulli_(1 - rate_, detail::next_generator());
    return x * kept.div_(1 - rate_);
  }

 private:
  double rate_;
};

/// Its holder, as TORCH_MODULE makes those of libtorch.
class Dropout : public ::torch::nn::ModuleHolder<DropoutImpl> {
 public:
  using ::torch::nn::ModuleHolder<DropoutImpl>::ModuleHolder;
};

}  // namespace stagger::torch
