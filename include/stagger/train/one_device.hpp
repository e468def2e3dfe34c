// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Training without a pipeline: one device, one loop, one microbatch after the other.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <stagger/core/combinations.hpp>
#include <stagger/core/error.hpp>
#include <stagger/core/fixed_array.hpp>
#include <stagger/core/list.hpp>
#include <stagger/core/math.hpp>
#include <stagger/engine/layer.hpp>
#include <stagger/engine/options.hpp>
#include <stagger/engine/slots.hpp>
#include <stagger/engine/step.hpp>
#include <stagger/model/context.hpp>
#include <stagger/model/loss.hpp>
#include <stagger/model/stage.hpp>
#include <stagger/parameters/layer_parameters.hpp>

namespace stagger {

namespace detail {

/// Refuses layers that keep their own weights, where passes are only measured.
[[gnu::cold]] inline void require_measurable(Layer const* layers, std::size_t count) {
  for (std::size_t l = 0; l < count; ++l)
    require_rule(Rule::own_weights_profiled,
                 feature::profiles.with(feature::own_weights,
                                        layers[l].ops().gradients_complete != nullptr));
}

/// The layers and values for a plain loop over all layers, without a schedule and with one
/// microbatch at a time.
struct LayerLoop {
  LayerLoop(Layer const* model, LayerParameters const* values, std::size_t count)
      : layers(model),
        parameters(values),
        y(count),
        dy(count),
        saved(count),
        dx(*model[0].ops().input, 1) {
    for (std::size_t l = 0; l < count; ++l) {
      LayerOps const& ops = model[l].ops();
      y[l] = Slots(*ops.output, 1);
      dy[l] = Slots(*ops.output, 1);
      saved[l] = Slots(*ops.saved, 1);
    }
  }

  [[nodiscard]] LayerAction action(std::size_t l, int microbatch) const noexcept {
    return {layers[l].object(), &layers[l].ops(), parameters[l].views(), parameters[l].number(),
            microbatch};
  }
  /// The input of a layer.
  [[nodiscard]] void const* before(std::size_t l, void const* x) const noexcept {
    return l == 0 ? x : y[l - 1][0];
  }

  /// @param x  the model's input
  void forward(Context& context, std::size_t l, void const* x, int microbatch = 0) const {
    forward_layer(context, action(l, microbatch), before(l, x), y[l][0], saved[l][0]);
  }
  void backward(Context& context, std::size_t l, void const* x, int microbatch = 0,
                WantedGradients want = {}) const {
    backward_layer(context, action(l, microbatch), want, before(l, x), dy[l][0],
                   l == 0 ? dx[0] : dy[l - 1][0], saved[l][0]);
  }

  Layer const* layers;  // [layers], as the others
  LayerParameters const* parameters;
  FixedArray<Slots> y, dy, saved;
  Slots dx;  // of the first layer; nothing reads it
};

}  // namespace detail

/// A plain loop over all layers, made by `Pipeline::on_one_device`: no schedule, no slots, no
/// threads. Pipelines are compared with it, for bits and for time: gradients are added in
/// microbatch order, as by a pipeline that runs its backwards in that order.
template <class In, class Out, OptimizerPolicy Optimizer, LossPolicy Loss> class OneDevice {
 public:
  using Target = typename Loss::Target;

  /// For Pipeline.
  /// @throws Error  bad_configuration for a clip_norm that is not above 0
  OneDevice(List<detail::Layer> layers, Optimizer const& optimizer, Loss loss,
            Options const& options)
      : layers_(std::move(layers)),
        parameters_(layers_.size()),
        loop_(layers_.data(), parameters_.data(), layers_.size()),
        optimizer_(optimizer),
        loss_(std::move(loss)),
        options_(options) {
    detail::require_clip_norm(options);
    namespace feature = detail::feature;
    detail::require_combination(
        feature::one_device.with(feature::own_weights, detail::keep_weights(layers_))
            .with(feature::clips, options.clip_norm.has_value())
            .with(feature::skips, options.non_finite == NonFinite::skip));
    int number = 0;
    for (detail::Layer const& layer : layers_) {
      parameters_[number].adopt(layer.ops().adopt_parameters(layer.object(), number), number,
                                Optimizer::states);
      ++number;
    }
  }

  /// One optimizer step on a minibatch.
  /// @throws  what a stage throws; parameters are then those of the last finished step
  Metrics step(Batch<In, Target> const& batch) {
    if constexpr (requires { optimizer_.check(); }) optimizer_.check();
    Metrics metrics = begin(batch, true);
    double const scale = metrics.terms > 0 ? 1 / metrics.terms : 0;
    double sum = 0;
    not_finite_ = {};
    try {
      for (std::size_t m = 0; m < batch.inputs.size(); ++m) {
        Out const& y = forward(batch.inputs[m], static_cast<int>(m));
        auto const microbatch = static_cast<int>(m);
        std::size_t l = layers_.size() - 1;
        auto& dy = *static_cast<Out*>(loop_.dy[l][0]);
        context_.begin_action(nullptr, static_cast<int>(l), microbatch);
        double const loss = loss_.value_and_gradient(context_, y, batch.targets[m], scale, dy);
        sum += loss;
        if (!not_finite_ && !detail::math::isfinite(loss)) not_finite_ = microbatch;
        detail::check_output_gradient(context_, y, dy);
        for (++l; l-- > 0;) {
          loop_.backward(context_, l, &batch.inputs[m], microbatch);
          if (m + 1 == batch.inputs.size())
            detail::end_gradients(context_, loop_.action(l, microbatch), {});
        }
      }
    } catch (...) {
      for (auto& parameters : parameters_) parameters.zero_gradients();
      throw;
    }
    update(metrics);
    metrics.loss = metrics.terms > 0 ? sum / metrics.terms : 0;
    return metrics;
  }

  /// Loss of a minibatch, forward only.
  Metrics evaluate(Batch<In, Target> const& batch) {
    Metrics metrics = begin(batch, false);
    double sum = 0;
    for (std::size_t m = 0; m < batch.inputs.size(); ++m)
      sum += loss_.value(context_, forward(batch.inputs[m], static_cast<int>(m)), batch.targets[m]);
    metrics.loss = metrics.terms > 0 ? sum / metrics.terms : 0;
    return metrics;
  }

  [[nodiscard]] Optimizer& optimizer() noexcept { return optimizer_; }
  [[nodiscard]] std::int64_t steps() const noexcept { return steps_; }
  /// As of a Trainer.
  void resume(std::int64_t steps) {
    detail::require_step(steps, "training cannot go on from");
    steps_ = steps;
  }

  /// Every parameter with its optimizer state, in layer order; writable between steps. Not a cheap
  /// call.
  [[nodiscard]] std::vector<ParameterState> parameters() {
    std::vector<ParameterState> states;
    for (auto& layer : parameters_) layer.append_states(states);
    return states;
  }

  /// What a profiler needs: the layers one by one, and the values between them.
  struct Parts {
    detail::LayerLoop& loop;
    FixedArray<detail::LayerParameters>& parameters;  // [layers]
    Context& context;
    Optimizer const& optimizer;
    Loss const& loss;
    std::uint64_t seed;
    std::int64_t steps;
  };
  [[nodiscard]] Parts parts() noexcept {
    return {loop_, parameters_, context_, optimizer_, loss_, options_.seed, steps_};
  }

 private:
  Metrics begin(Batch<In, Target> const& batch, bool training) {
    if (batch.inputs.empty() || batch.inputs.size() != batch.targets.size())
      raise(Errc::bad_configuration, "a minibatch of ", counted(batch.inputs.size(), "input"),
            " and ", counted(batch.targets.size(), "target"),
            " cannot be run; give at least 1 input and a target for each");
    Metrics metrics;
    std::size_t microbatch = 0;
    for (auto const& target : batch.targets)
      metrics.terms += detail::require_terms(loss_.terms(target), microbatch++);
    context_.begin_step(steps_, options_.seed, training);
    for (auto& parameters : parameters_) parameters.clear_added();
    return metrics;
  }

  Out const& forward(In const& input, int microbatch) {
    for (std::size_t l = 0; l < layers_.size(); ++l) loop_.forward(context_, l, &input, microbatch);
    return *static_cast<Out const*>(loop_.y[layers_.size() - 1][0]);
  }

  void update(Metrics& metrics) {
    double scale = 1;
    double sum = 0;
    for (auto& parameters : parameters_) {
      if (options_.clip_norm) parameters.sum_squares();
      for (double const square_sum : parameters.square_sums()) sum += square_sum;
    }
    metrics.gradient_norm = detail::math::sqrt(sum);
    if (options_.clip_norm && metrics.gradient_norm > *options_.clip_norm)
      scale = *options_.clip_norm / metrics.gradient_norm;
    if (options_.non_finite != NonFinite::ignore && skips(metrics.gradient_norm)) {
      for (auto& parameters : parameters_) parameters.zero_gradients();
      metrics.skipped = 1;
      return;
    }
    detail::UpdateStep step{scale, ++steps_};
    step.only_added = true;
    for (auto& parameters : parameters_) parameters.update(optimizer_, step);
  }
  /// Whether the update is left out, since gradients are not finite.
  [[nodiscard]] bool skips(double norm) {
    std::size_t l = layers_.size();
    auto const finite = [&](auto const& layer) {
      return layer.all_finite(layer.stored().gradients.data());
    };
    while (l > 0 && finite(parameters_[l - 1])) --l;
    if (l == 0 && detail::math::isfinite(norm)) return false;
    if (options_.non_finite == NonFinite::skip) return true;
    for (auto& parameters : parameters_) parameters.zero_gradients();
    if (l == 0) detail::refuse_norm(steps_);
    detail::refuse_update(text("a gradient of layer ", l - 1),
                          not_finite_ ? detail::nor_is_loss(*not_finite_) : std::string(), steps_);
  }

  List<detail::Layer> layers_;
  FixedArray<detail::LayerParameters> parameters_;
  detail::LayerLoop loop_;
  Context context_;
  Optimizer optimizer_;
  Loss loss_;
  Options options_;
  std::int64_t steps_ = 0;
  std::optional<int> not_finite_{};  // the first microbatch of a step whose loss is not
};

}  // namespace stagger
