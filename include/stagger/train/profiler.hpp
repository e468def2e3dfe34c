// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   What a model costs layer by layer, measured on the host or where a pipeline runs: the
/// input of every planner.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <stagger/cluster/profile.hpp>
#include <stagger/core/error.hpp>
#include <stagger/core/fixed_array.hpp>
#include <stagger/engine/machine.hpp>
#include <stagger/train/footprint.hpp>
#include <stagger/train/one_device.hpp>
#include <stagger/train/trainer.hpp>

namespace stagger {

/// How a model is measured.
struct ProfilerOptions {
  int repeats = 9;            ///< passes whose median counts, >= 1
  int discarded = 2;          ///< passes before them: caches and memory settle
  int samples = 1;            ///< samples in the microbatch measured, >= 1; becomes Profile::batch
  std::string name{};         ///< of the model
  std::string device{"cpu"};  ///< where it runs
  std::vector<std::string> layer_names{};  ///< [layers], or none: layers are then numbered
};

/// Measures a model on one device: whole passes, forward and backward, each layer by the clock; so
/// a layer finds the caches as its neighbours left them.
///
/// @code
///     auto one = Pipeline{model}.on_one_device(loss::CrossEntropy<>{});
///     cluster::Profile profile = Profiler{{.samples = 4}}.measure(one, input, target);
/// @endcode
class Profiler {
 public:
  /// @throws Error  bad_configuration for counts below 1 or names that are not one for each layer
  explicit Profiler(ProfilerOptions options = {}) : options_(std::move(options)) {
    if (options_.repeats < 1 || options_.discarded < 0 || options_.samples < 1)
      raise(Errc::bad_configuration, "a model cannot be measured in ", options_.repeats,
            " passes after ", options_.discarded, " discarded ones, with ",
            counted(options_.samples, "sample"), "; use at least 1, 0 and 1");
  }

  /// Seconds of forward, input gradient and weight gradient of each layer, medians; bytes of its
  /// output, of what is kept for its backward (its input and its saved state) and of its
  /// parameters. The loss counts for the last layer's backward. Parameters stay as they are.
  /// @tparam Clock  what tells the time; a test has one of its own
  template <class Clock = std::chrono::steady_clock, class In, class Out, class Optimizer,
            class Loss>
  [[nodiscard]] cluster::Profile measure(
      OneDevice<In, Out, Optimizer, Loss>& one, In const& input,
      typename OneDevice<In, Out, Optimizer, Loss>::Target const& target) const {
    std::size_t const layers = one.parts().layers.size();
    require_names(layers);
    auto const passes = static_cast<std::size_t>(options_.repeats);
    std::vector<Passes> times(layers,
                              Passes{std::vector<double>(passes), std::vector<double>(passes),
                                     std::vector<double>(passes)});
    double const terms = one.parts().loss.terms(target);
    one.parts().context.begin_step(one.parts().steps, one.parts().seed, true);
    for (int pass = -options_.discarded; pass < options_.repeats; ++pass) {
      auto const slot = static_cast<std::size_t>(std::max(pass, 0));
      void const* x = &input;
      for (std::size_t l = 0; l < layers; ++l) {
        begin(one, l);
        auto const& ops = one.parts().layers[l].ops();
        times[l].forward[slot] = seconds<Clock>([&] {
          ops.forward(one.parts().layers[l].object(), one.parts().context, x, one.parts().y[l][0],
                      one.parts().saved[l][0]);
        });
        x = one.parts().y[l][0];
      }
      auto& dy = *static_cast<Out*>(one.parts().dy[layers - 1][0]);
      double const loss_s = seconds<Clock>([&] {
        (void)one.parts().loss.value_and_gradient(one.parts().context, *static_cast<Out const*>(x),
                                                  target, terms > 0 ? 1 / terms : 0, dy);
      });
      for (std::size_t l = layers; l-- > 0;) backward<Clock>(one, input, l, times[l], slot);
      times[layers - 1].input[slot] += loss_s;
    }
    for (auto& parameters : one.parts().parameters) parameters.zero_gradients();

    auto profile = timed(times, one.parts().parameters);
    for (std::size_t l = 0; l < layers; ++l) {
      auto& layer = profile.layers[l];
      layer.activation_bytes = one.parts().y[l].bytes();
      layer.stash_bytes = (l == 0 ? byte_count(input) : one.parts().y[l - 1].bytes()) +
                          one.parts().saved[l].bytes();
    }
    return profile;
  }

  /// The same by the clock of the device that runs a pipeline, a GPU for instance: from recorded
  /// steps in which every layer is a stage. Each microbatch of each step counts as a pass. Where
  /// the schedule does not split backward, the weight gradient's part stays unknown. Parameters
  /// move, as in every step.
  ///
  /// @code
  ///     auto train = Pipeline{Sequential{...}}.with(partition::Even{layers}, schedule::GPipe{},
  ///                                                 device, loss, Options{.record = true});
  ///     cluster::Profile profile = Profiler{{.device = "h200"}}.measure(train, batch);
  /// @endcode
  /// @throws Error  bad_configuration for a pipeline of other stages, with replicas, or one that
  ///                does not record; whatever a step throws
  template <class In, class Out, class Optimizer, class Loss, class Device>
  [[nodiscard]] cluster::Profile measure(Trainer<In, Out, Optimizer, Loss, true, Device>& train,
                                         Batch<In, typename Loss::Target> const& batch) const {
    train.settle();
    auto& machine = train.machine();
    std::size_t const layers = machine.parameters().size();
    require_names(layers);
    if (static_cast<std::size_t>(train.stages()) != layers || !machine.options().replicas.empty() ||
        !machine.options().record)
      raise(Errc::bad_configuration, "a pipeline of ", counted(train.stages(), "stage"), " with ",
            counted(layers, "layer"),
            " cannot be measured layer by layer; make each layer a stage, leave "
            "Options::replicas out, and set Options::record");
    std::vector<Passes> times(layers);
    for (int pass = -options_.discarded; pass < options_.repeats; ++pass) {
      (void)run(train.step(batch));
      if (pass < 0) continue;
      for (auto const& row : train.timeline().rows)
        for (schedule::Span const& span : row) times[at(span)].add(span);
    }
    auto profile = timed(times, machine.parameters());
    for (std::size_t l = 0; l < layers; ++l) {
      auto const& own = machine.run.storage[l];
      auto& layer = profile.layers[l];
      layer.activation_bytes =
          l + 1 < layers ? machine.run.storage[l + 1].x.largest() : own.layers[0].y.largest();
      layer.stash_bytes =
          (l == 0 ? byte_count(batch.inputs[0]) : own.x.largest()) + own.layers[0].saved.largest();
    }
    return profile;
  }

  /// What one microbatch leaves behind layer by layer, whatever the model did before. Parameters
  /// stay as they are.
  template <class In, class Out, class Optimizer, class Loss>
  [[nodiscard]] Footprint footprint(
      OneDevice<In, Out, Optimizer, Loss>& one, In const& input,
      typename OneDevice<In, Out, Optimizer, Loss>::Target const& target) const {
    std::size_t const layers = one.parts().layers.size();
    FixedArray<detail::Slots> y(layers), dy(layers), saved(layers);
    FixedArray<Context> contexts(layers + 1);  // of the layers and the loss
    detail::Slots x(*one.parts().layers[0].ops().input, 1),
        dx(*one.parts().layers[0].ops().input, 1);
    one.parts().layers[0].ops().input->assign(x[0], &input);
    Footprint result;
    result.layers.resize(layers);
    result.input = x.bytes();
    result.target = byte_count(target);
    auto const begin_action = [&](std::size_t l) {
      contexts[l].begin_action(l < layers ? one.parts().parameters[l].views() : nullptr,
                               static_cast<int>(std::min(l, layers - 1)), 0);
    };
    for (auto& context : contexts) context.begin_step(one.parts().steps, one.parts().seed, true);
    for (std::size_t l = 0; l < layers; ++l) {
      auto const& ops = one.parts().layers[l].ops();
      y[l] = detail::Slots(*ops.output, 1);
      dy[l] = detail::Slots(*ops.output, 1);
      saved[l] = detail::Slots(*ops.saved, 1);
      begin_action(l);
      ops.forward(one.parts().layers[l].object(), contexts[l], l == 0 ? x[0] : y[l - 1][0], y[l][0],
                  saved[l][0]);
      result.layers[l].saved_forward = saved[l].bytes();
    }
    double const terms = one.parts().loss.terms(target);
    begin_action(layers);
    (void)one.parts().loss.value_and_gradient(
        contexts[layers], *static_cast<Out const*>(y[layers - 1][0]), target,
        terms > 0 ? 1 / terms : 0, *static_cast<Out*>(dy[layers - 1][0]));
    begin_action(layers);  // settles what was taken
    for (std::size_t l = layers; l-- > 0;) {
      auto const& ops = one.parts().layers[l].ops();
      void* const object = one.parts().layers[l].object();
      void const* const in = l == 0 ? x[0] : y[l - 1][0];
      void* const gradient = l == 0 ? dx[0] : dy[l - 1][0];
      begin_action(l);
      if (ops.backward != nullptr) {
        ops.backward(object, contexts[l], in, dy[l][0], gradient, saved[l][0]);
      } else {
        if (ops.backward_input != nullptr)
          ops.backward_input(object, contexts[l], in, dy[l][0], gradient, saved[l][0]);
        begin_action(l);
        if (ops.backward_weight != nullptr)
          ops.backward_weight(object, contexts[l], in, dy[l][0], saved[l][0]);
      }
      begin_action(l);
    }
    result.input_gradient = dx.bytes();
    for (std::size_t l = 0; l < layers; ++l) {
      LayerBytes& of = result.layers[l];
      of.output = y[l].bytes();
      of.output_gradient = dy[l].bytes();
      of.saved = saved[l].bytes();
      of.scratch = contexts[l].scratch_bytes();
      of.parameters = one.parts().parameters[l].bytes() / (2 + Optimizer::states);
      one.parts().parameters[l].zero_gradients();
    }
    auto& last = result.layers.back().scratch;
    last = std::max(last, contexts[layers].scratch_bytes());
    return result;
  }

  /// [layers] Seconds of an optimizer step, with the sums of squares that clipping needs; medians.
  /// Parameters and states change.
  template <class Clock = std::chrono::steady_clock, class In, class Out, class Optimizer,
            class Loss>
  [[nodiscard]] std::vector<double> update_seconds(OneDevice<In, Out, Optimizer, Loss>& one) const {
    std::vector<double> result;
    for (auto& parameters : one.parts().parameters) {
      std::vector<double> times;
      for (int pass = -options_.discarded; pass < options_.repeats; ++pass) {
        double const s = seconds<Clock>([&] {
          parameters.sum_squares();
          parameters.update(one.parts().optimizer, {1, one.parts().steps + 1});
        });
        if (pass >= 0) times.push_back(s);
      }
      result.push_back(median(std::move(times)));
    }
    return result;
  }

 private:
  /// Seconds of each pass. A backward that does not split counts as input gradient.
  struct Passes {
    std::vector<double> forward, input, weight;

    void add(schedule::Span const& span) {
      auto& of = span.action.kind == schedule::Kind::forward           ? forward
                 : span.action.kind == schedule::Kind::backward_weight ? weight
                                                                       : input;
      if (!span.repeated) of.push_back(span.end_s - span.start_s);
    }
  };

  static std::size_t at(schedule::Span const& span) {
    return static_cast<std::size_t>(span.action.stage);
  }

  void require_names(std::size_t layers) const {
    if (!options_.layer_names.empty() && options_.layer_names.size() != layers)
      raise(Errc::bad_configuration, options_.layer_names.size(), " names were given for ",
            counted(layers, "layer"), "; give one for each, or none");
  }

  /// A profile without the bytes of values.
  [[nodiscard]] cluster::Profile timed(
      std::vector<Passes> const& times,
      FixedArray<detail::LayerParameters> const& parameters) const {
    cluster::Profile profile;
    profile.name = options_.name;
    profile.batch = options_.samples;
    profile.device = options_.device;
    for (std::size_t l = 0; l < times.size(); ++l) {
      cluster::Layer layer;
      layer.name = options_.layer_names.empty() ? std::to_string(l) : options_.layer_names[l];
      layer.forward_s = median(times[l].forward);
      double const weight_s = median(times[l].weight);
      layer.backward_s = median(times[l].input) + weight_s;
      if (weight_s > 0) layer.backward_weight_s = weight_s;
      for (std::size_t i = 0; i < parameters[l].count(); ++i)
        layer.parameter_bytes += parameters[l].value_bytes(i);
      profile.layers.push_back(std::move(layer));
    }
    return profile;
  }

  template <class Clock, class Run> static double seconds(Run&& run) {
    auto const begin = Clock::now();
    run();
    return std::chrono::duration<double>(Clock::now() - begin).count();
  }

  /// 0 of none.
  static double median(std::vector<double> values) {
    if (values.empty()) return 0;
    auto const middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    return *middle;
  }

  template <class One> static void begin(One& one, std::size_t layer) {
    one.parts().context.begin_action(one.parts().parameters[layer].views(), static_cast<int>(layer),
                                     0);
  }

  template <class Clock, class One, class In>
  static void backward(One& one, In const& input, std::size_t l, Passes& times, std::size_t slot) {
    auto const& ops = one.parts().layers[l].ops();
    void* const object = one.parts().layers[l].object();
    void const* const x = l == 0 ? static_cast<void const*>(&input) : one.parts().y[l - 1][0];
    void* const dx = l == 0 ? one.parts().dx[0] : one.parts().dy[l - 1][0];
    void* const dy = one.parts().dy[l][0];
    void* const saved = one.parts().saved[l][0];
    begin(one, l);
    if (ops.backward_input == nullptr && ops.backward != nullptr) {
      times.input[slot] =
          seconds<Clock>([&] { ops.backward(object, one.parts().context, x, dy, dx, saved); });
      return;
    }
    if (ops.backward_input != nullptr) {
      times.input[slot] = seconds<Clock>(
          [&] { ops.backward_input(object, one.parts().context, x, dy, dx, saved); });
      begin(one, l);
    }
    if (ops.backward_weight != nullptr)
      times.weight[slot] =
          seconds<Clock>([&] { ops.backward_weight(object, one.parts().context, x, dy, saved); });
  }

  ProfilerOptions options_;
};

}  // namespace stagger
