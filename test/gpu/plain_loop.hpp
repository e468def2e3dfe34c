// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The transformer's training as a flat loop on one stream: what the engine is measured
/// against. Layers, kernels and memory are the same; of a pipeline, a schedule, events and a graph
/// it knows nothing.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include <stagger/core/fixed_array.hpp>
#include <stagger/cuda/detail/parameter_memory.hpp>
#include <stagger/cuda/tensor.hpp>
#include <stagger/train/pipeline.hpp>

#include "cuda/batch.hpp"
#include "cuda/layers.hpp"

namespace plain {

namespace sg = stagger;

using Adam = sg::cuda::Enqueued<sg::optimizer::AdamW>;

/// Loss and norm of a step.
struct Result {
  double loss = 0;
  double norm = 0;
};

/// @tparam T  what activations are: float or __nv_bfloat16
template <class T> class Loop {
 public:
  using Output = sg::cuda::Tensor<T>;

  Loop(gpt::ModelShape const& shape, std::uint64_t seed, Adam const& adam, double clip,
       std::size_t microbatches, std::shared_ptr<gpt::gpu::Workspaces<T>> const& workspaces)
      : memory_(sg::cuda::detail::parameter_memory(0)),
        layers_(layers_of(gpt::gpu::make_model<T>(shape, seed, workspaces))),
        parameters_(layers_.size()),
        y_(layers_.size()),
        dy_(layers_.size()),
        saved_(layers_.size()),
        adam_(adam),
        clip_(clip),
        loss_(workspaces) {
    for (std::size_t l = 0; l < layers_.size(); ++l) {
      auto const& ops = layers_[l].ops();
      parameters_[l].adopt(ops.adopt_parameters(layers_[l].object(), static_cast<int>(l)),
                           static_cast<int>(l), Adam::states, &memory_);
      count_ += parameters_[l].count();
      if (l == 0) dx_ = sg::detail::Slots(*ops.input, 1);
      y_[l] = sg::detail::Slots(*ops.output, 1);
      dy_[l] = sg::detail::Slots(*ops.output, 1);
      saved_[l] = sg::detail::Slots(*ops.saved, 1);
    }
    here_.resize(1);
    host_.resize(microbatches + 2);
    numbers_.resize({2});
    rule_.resize({sizeof(Sent::rule)});
    scale_.resize({1});
    losses_.resize({microbatches});
    squares_.resize({count_});
    scratch_.resize({sg::cuda::parameter_kernels.scratch_size});
    place_.numbers = reinterpret_cast<sg::cuda::StepNumbers*>(numbers_.data());
    place_.optimizer = rule_.data();
    place_.scale = scale_.data();
    place_.losses = losses_.data();
    place_.scratch = scratch_.data();
    place_.kernels = &sg::cuda::parameter_kernels;
    place_.refused = &refused_;
    sg::cuda::check(
        cudaMemsetAsync(scale_.data(), 0, sizeof(sg::cuda::GradientScale), stream_.get()),
        "set up the scale of the gradients");  // nobody looks whether they are finite
    place_.loss_on_device = &loss_on_device_;
  }

  /// One optimizer step; returns when the GPU has taken it.
  Result step(gpt::gpu::DeviceBatch const& batch) {
    sg::cuda::detail::AtPlace const here({stream_.get(), &pool_, &place_});
    send();
    double terms = 0;
    for (auto const& target : batch.targets) terms += loss_.terms(target);
    context_.begin_step(steps_, 0, true);
    for (std::size_t m = 0; m < batch.inputs.size(); ++m)
      microbatch(batch.inputs[m], batch.targets[m], static_cast<int>(m), 1 / terms);
    std::size_t first = 0;
    for (auto& parameters : parameters_) {
      for (std::size_t i = 0; i < parameters.count(); ++i)
        parameters.sum_squares(i, squares_.data() + first);
      first += parameters.count();
    }
    sg::cuda::check(
        place_.kernels->scale(squares_.data(), count_, clip_, scale_.data(), stream_.get()),
        "find the scale of the gradients");
    for (auto& parameters : parameters_) parameters.update(adam_, {1, steps_ + 1});
    fetch();
    ++steps_;
    Result result{0, host_.data()[batch.inputs.size() + 1]};
    for (std::size_t m = 0; m < batch.inputs.size(); ++m) result.loss += host_.data()[m];
    result.loss /= terms;
    return result;
  }

 private:
  static sg::List<sg::detail::Layer> layers_of(gpt::gpu::Model<T> model) {
    sg::List<sg::detail::Layer> layers;
    sg::detail::append_layers(layers, std::move(model));
    return layers;
  }

  void send() {
    Sent& sent = here_.data()[0];
    sent.numbers = {steps_, 0};
    place_.steps = steps_;
    sent.rule = adam_;
    auto const copy = [&](void* to, void const* from, std::size_t bytes) {
      sg::cuda::check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream_.get()),
                      "send the numbers of a step");
    };
    copy(numbers_.data(), &sent.numbers, sizeof sent.numbers);
    copy(rule_.data(), &sent.rule, sizeof sent.rule);
    sg::cuda::check(
        cudaMemsetAsync(losses_.data(), 0, losses_.size() * sizeof(double), stream_.get()),
        "clear the losses");
  }

  void microbatch(gpt::gpu::DeviceTokens const& input, gpt::gpu::DeviceTokens const& target,
                  int number, double scale) {
    auto const begin = [&](std::size_t l) {
      context_.begin_action(parameters_[l].views(), static_cast<int>(l), number);
    };
    void const* x = &input;
    for (std::size_t l = 0; l < layers_.size(); ++l) {
      begin(l);
      layers_[l].ops().forward(layers_[l].object(), context_, x, y_[l][0], saved_[l][0]);
      x = y_[l][0];
    }
    static_cast<void>(loss_.value_and_gradient(context_, *static_cast<Output const*>(x), target,
                                               scale,
                                               *static_cast<Output*>(dy_[layers_.size() - 1][0])));
    for (std::size_t l = layers_.size(); l-- > 0;) {
      auto const& ops = layers_[l].ops();
      void const* const in = l == 0 ? static_cast<void const*>(&input) : y_[l - 1][0];
      void* const gradient = l == 0 ? dx_[0] : dy_[l - 1][0];
      begin(l);
      if (ops.backward_input != nullptr)
        ops.backward_input(layers_[l].object(), context_, in, dy_[l][0], gradient, saved_[l][0]);
      if (ops.backward_weight != nullptr)
        ops.backward_weight(layers_[l].object(), context_, in, dy_[l][0], saved_[l][0]);
    }
  }

  void fetch() {
    auto const copy = [&](double* to, void const* from, std::size_t bytes) {
      sg::cuda::check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream_.get()),
                      "fetch the loss of a step");
    };
    copy(host_.data(), losses_.data(), losses_.size() * sizeof(double));
    copy(host_.data() + losses_.size(), scale_.data(), sizeof(sg::cuda::GradientScale));
    sg::cuda::check(cudaStreamSynchronize(stream_.get()), "take a step");
    sg::cuda::check(refused_, "change parameters");
  }

  struct Sent {
    sg::cuda::StepNumbers numbers;
    sg::optimizer::AdamW rule;
  };

  sg::cuda::Stream stream_;
  std::shared_ptr<sg::cuda::Pool> pool_ = std::make_shared<sg::cuda::Pool>();
  sg::detail::ParameterMemory memory_;
  sg::List<sg::detail::Layer> layers_;
  sg::FixedArray<sg::detail::LayerParameters> parameters_;  // [layers]
  sg::FixedArray<sg::detail::Slots> y_, dy_, saved_;        // [layers]
  sg::detail::Slots dx_;
  sg::Context context_;
  Adam adam_;
  double clip_;
  gpt::gpu::CrossEntropy<T> loss_;
  std::size_t count_ = 0;  // of parameters
  std::int64_t steps_ = 0;
  sg::cuda::Pinned<Sent> here_;
  sg::cuda::Pinned<double> host_;  // losses, then factor and norm
  sg::cuda::Tensor<std::int64_t> numbers_;
  sg::cuda::Tensor<std::byte> rule_;
  sg::cuda::Tensor<sg::cuda::GradientScale> scale_;
  sg::cuda::Tensor<double> losses_, squares_, scratch_;
  cudaError_t refused_ = cudaSuccess;
  bool loss_on_device_ = false;
  sg::cuda::detail::StepPlace place_;
};

}  // namespace plain
