// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A loss from a function of tensors, differentiated by libtorch.

#include <functional>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/engine.h>

#include <stagger/core/error.hpp>
#include <stagger/model/context.hpp>
#include <stagger/model/loss.hpp>
#include <stagger/torch/detail/thread.hpp>
#include <stagger/torch/value.hpp>

namespace stagger::torch {

/// A loss from a function that gives the *mean* over the terms of a microbatch, as libtorch's losses
/// do by default:
///
///     sg::torch::Loss{[](at::Tensor const& y, at::Tensor const& t) {
///       return torch::nn::functional::mse_loss(y, t);
///     }}
///
/// The loss of a step is the mean over the terms of all its microbatches. Unless said otherwise, a
/// term is a row of the target, [rows, ...].
class Loss {
 public:
  using policy_tag = LossTag;
  using Target = Value;
  using Mean = std::function<at::Tensor(at::Tensor const& y, at::Tensor const& target)>;
  using Terms = std::function<double(at::Tensor const& target)>;

  /// @param mean   gives a tensor of one element; runs on several threads at once
  /// @param count  how many terms a target has, such as its rows that are not ignored; empty: rows
  explicit Loss(Mean mean, Terms count = {}) : mean_(std::move(mean)), terms_(std::move(count)) {
    if (!mean_)
      raise(Errc::bad_configuration,
            "a torch::Loss was made from an empty function; give one of the output and the target");
  }

  [[nodiscard]] double terms(Value const& target) const {
    if (terms_) return terms_(target);
    return target.tensor().defined() && target.tensor().dim() == 0
               ? 1
               : static_cast<double>(target.rows());
  }

  /// @throws Error  mismatch if the function gives no tensor of one element; bad_data with what
  ///                libtorch says
  [[nodiscard]] double value(Context&, Value const& y, Value const& target) const {
    detail::know_thread();
    c10::InferenceMode const off(false);
    at::NoGradGuard const none;
    return guarded([&] { return mean_of(y, target).item<double>() * terms(target); });
  }

  double value_and_gradient(Context&, Value const& y, Value const& target, double scale,
                            Value& dy) const {
    detail::know_thread();
    c10::InferenceMode const off(false);
    at::AutoGradMode const on(true);
    return guarded([&] {
      at::Tensor const leaf = y.tensor().detach().requires_grad_();
      at::Tensor const mean = mean_of(leaf, target);
      double const count = terms(target);
      at::Tensor gradient;
      if (mean.requires_grad())
        gradient = ::torch::autograd::Engine::get_default_engine().execute(
            {::torch::autograd::impl::gradient_edge(mean)}, {at::full_like(mean, scale * count)},
            false, false, false, {::torch::autograd::impl::gradient_edge(leaf)})[0];
      if (!gradient.defined()) gradient = at::zeros_like(y.tensor());
      dy = detail::of_its_own(std::move(gradient), y.tensor(), target.tensor());
      return mean.item<double>() * count;
    });
  }

 private:
  [[nodiscard]] at::Tensor mean_of(at::Tensor const& y, at::Tensor const& target) const {
    at::Tensor mean = mean_(y, target);
    if (!mean.defined() || mean.numel() != 1) [[unlikely]]
      raise(Errc::mismatch, "the function of a torch::Loss returned ",
            mean.defined() ? "a tensor of extents " + detail::in_words(mean.sizes())
                           : "an undefined tensor",
            "; return the mean over the microbatch, a tensor of one element, as with mean()");
    return mean;
  }
  template <class Call> static double guarded(Call call) {
    try {
      return call();
    } catch (c10::Error const& error) {
      raise(Errc::bad_data, "the function of a torch::Loss: ", detail::first_line(error),
            "; give it an output and a target that fit");
    }
  }

  Mean mean_;
  Terms terms_;
};

}  // namespace stagger::torch
