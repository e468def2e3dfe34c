// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The measurement of a model's costs, layer by layer, on the host or on a pipeline's
///         device: the input of every planner.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <stagger/cluster/profile.hpp>
#include <stagger/core/combinations.hpp>
#include <stagger/core/error.hpp>
#include <stagger/core/fixed_array.hpp>
#include <stagger/core/list.hpp>
#include <stagger/core/rows.hpp>
#include <stagger/engine/machine.hpp>
#include <stagger/train/footprint.hpp>
#include <stagger/train/one_device.hpp>
#include <stagger/train/pipeline_footprint.hpp>
#include <stagger/train/trainer.hpp>

namespace stagger {

/// How a model is measured.
struct ProfilerOptions {
  int repeats = 9;               ///< passes whose median counts, >= 1
  int discarded = 2;             ///< warm-up passes before them, in which caches and memory settle
  std::optional<int> samples{};  ///< samples in the microbatch measured, >= 1; becomes
                                 ///< Profile::batch. None: the rows of the input, if it has rows
  std::string name{};            ///< of the model
  std::string device{"cpu"};     ///< where it runs
  std::vector<std::string> layer_names{};  ///< [layers], or none: layers are then numbered
};

/// Measures a model on one device. Each layer is timed within whole forward and backward passes, so
/// that caches are in the same state as in training.
///
/// @code
///     auto one = Pipeline{model}.on_one_device(loss::CrossEntropy<>{});
///     cluster::Profile profile = Profiler{}.measure(one, input, target);
/// @endcode
class Profiler {
 public:
  /// @throws Error  bad_configuration for counts below 1 or names that are not one for each layer
  explicit Profiler(ProfilerOptions options = {}) : options_(std::move(options)) {
    int const samples = options_.samples.value_or(1);
    if (options_.repeats < 1 || options_.discarded < 0 || samples < 1)
      raise(Errc::bad_configuration, "a model cannot be measured in ", options_.repeats,
            " passes after ", options_.discarded, " discarded ones, with ",
            counted(samples, "sample"), "; use at least 1 pass, 0 discarded ones and 1 sample");
  }

  /// Seconds of forward, input gradient and weight gradient of each layer, medians; bytes of its
  /// output, of what is kept for its backward (its input and its saved state) and of its
  /// parameters. The loss counts for the last layer's backward. Parameters stay as they are.
  /// @tparam Clock  the clock; tests use their own
  /// @throws Error  bad_configuration for an input without rows if ProfilerOptions::samples is not
  ///                given, which the other measure() throws as well
  template <class Clock = std::chrono::steady_clock, class In, class Out, class Optimizer,
            class Loss>
  [[nodiscard]] cluster::Profile measure(
      OneDevice<In, Out, Optimizer, Loss>& one, In const& input,
      typename OneDevice<In, Out, Optimizer, Loss>::Target const& target) const {
    auto const parts = one.parts();
    auto const& loop = parts.loop;
    std::size_t const layers = parts.parameters.size();
    require_names(layers);
    detail::require_measurable(loop.layers, layers);
    int const samples = samples_of(&input, 1);
    auto const passes = static_cast<std::size_t>(options_.repeats);
    List<Passes> times(layers, Passes{std::vector<double>(passes), std::vector<double>(passes),
                                      std::vector<double>(passes)});
    double const terms = detail::require_terms(parts.loss.terms(target), 0);
    parts.context.begin_step(parts.steps, parts.seed, true, 0, true);
    for (int pass = -options_.discarded; pass < options_.repeats; ++pass) {
      auto const slot = static_cast<std::size_t>(std::max(pass, 0));
      for (std::size_t l = 0; l < layers; ++l)
        times[l].forward[slot] = seconds<Clock>([&] { loop.forward(parts.context, l, &input); });
      auto const& y = *static_cast<Out const*>(loop.y[layers - 1][0]);
      auto& dy = *static_cast<Out*>(loop.dy[layers - 1][0]);
      double const loss_s = seconds<Clock>([&] {
        (void)parts.loss.value_and_gradient(parts.context, y, target, terms > 0 ? 1 / terms : 0,
                                            dy);
      });
      for (std::size_t l = layers; l-- > 0;) {
        auto const backward = [&](detail::WantedGradients want) {
          return seconds<Clock>([&] { loop.backward(parts.context, l, &input, 0, want); });
        };
        detail::LayerOps const& ops = loop.layers[l].ops();
        bool const whole = ops.backward != nullptr && ops.backward_input == nullptr;
        if (whole || ops.backward_input != nullptr)
          times[l].input[slot] = backward({.input = true, .weight = false});
        if (!whole && ops.backward_weight != nullptr)
          times[l].weight[slot] = backward({.input = false, .weight = true});
      }
      times[layers - 1].input[slot] += loss_s;
    }
    for (auto& parameters : parts.parameters) parameters.zero_gradients();

    auto profile = timed(times, parts.parameters, samples);
    for (std::size_t l = 0; l < layers; ++l) {
      auto& layer = profile.layers[l];
      layer.activation_bytes = loop.y[l].bytes();
      layer.stash_bytes =
          (l == 0 ? byte_count(input) : loop.y[l - 1].bytes()) + loop.saved[l].bytes();
    }
    return profile;
  }

  /// The same by the clock of a pipeline's device, such as a GPU, from recorded steps in which
  /// every layer is a stage. Each microbatch of each step counts as a pass. If the schedule does
  /// not split backward, the weight gradient's part stays unknown. Parameters change, as in every
  /// step.
  ///
  /// @code
  ///     auto train = Pipeline{Sequential{...}}.with(partition::Even{layers}, schedule::GPipe{},
  ///                                                 device, loss, Options{.record = true});
  ///     cluster::Profile profile = Profiler{{.device = "h200"}}.measure(train, batch);
  /// @endcode
  /// @throws Error  bad_configuration for a pipeline in which not every layer is a stage, with
  ///                replicas, or without Options::record; for microbatches of different numbers of
  ///                rows if ProfilerOptions::samples is not given; what a step throws
  template <class In, class Out, class Optimizer, class Loss, class Device>
  [[nodiscard]] cluster::Profile measure(Trainer<In, Out, Optimizer, Loss, true, Device>& train,
                                         Batch<In, typename Loss::Target> const& batch) const {
    train.settle();
    auto& machine = train.machine();
    std::size_t const layers = machine.parameters().size();
    require_names(layers);
    if (std::cmp_not_equal(train.stages(), layers))
      raise(Errc::bad_configuration, "a pipeline of ", counted(train.stages(), "stage"), " with ",
            counted(layers, "layer"),
            " cannot be measured layer by layer; make each layer a stage");
    namespace feature = detail::feature;
    detail::Features const features =
        feature::profiles.with(feature::replicas, !machine.options().replicas.empty())
            .with(feature::records, machine.options().record);
    detail::require_measurable(machine.model.layers.data(), layers);
    require_rule(detail::Rule::profiled_replicas, features);
    require_rule(detail::Rule::profile_unrecorded, features);
    int const samples = samples_of(batch.inputs.data(), batch.inputs.size());
    List<Passes> times(layers);
    for (int pass = -options_.discarded; pass < options_.repeats; ++pass) {
      (void)run(train.step(batch));
      if (pass < 0) continue;
      for (schedule::Span const& span : train.timeline().spans) times[span.action.stage].add(span);
    }
    auto const hold = train.hold();
    auto profile = timed(times, machine.parameters(), samples);
    for (std::size_t l = 0; l < layers; ++l) {
      auto const& own = machine.run.storage[l][0];
      auto& layer = profile.layers[l];
      layer.activation_bytes =
          l + 1 < layers ? machine.run.storage[l + 1][0].x.largest() : own.layers[0].y.largest();
      layer.stash_bytes =
          (l == 0 ? byte_count(batch.inputs[0]) : own.x.largest()) + own.layers[0].saved.largest();
    }
    return profile;
  }

  /// Declared to say that a stream cannot be measured.
  template <class In, class Out, class Optimizer, class Loss, class Device, class Data>
  [[nodiscard]] cluster::Profile measure(Trainer<In, Out, Optimizer, Loss, false, Device>&,
                                         Data const&) const {
    using detail::Rule;
    constexpr Rule rule = std::is_void_v<Data> ? Rule::none : Rule::profiled_stream;
    static_cast<void>(detail::NotCombined<rule>{});
    return {};
  }

  /// The memory that one microbatch occupies, layer by layer, independent of earlier steps.
  /// Parameters stay as they are.
  template <class In, class Out, class Optimizer, class Loss>
  [[nodiscard]] Footprint footprint(
      OneDevice<In, Out, Optimizer, Loss>& one, In const& input,
      typename OneDevice<In, Out, Optimizer, Loss>::Target const& target) const {
    auto const parts = one.parts();
    detail::FootprintRun run(parts.loop.layers, parts.parameters, parts.steps, parts.seed);
    Footprint result = run.measure(&input, &parts.loss, detail::make_loss_ops<Loss, Out>(), &target,
                                   parts.loss.terms(target));
    result.target = byte_count(target);
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

  void require_names(std::size_t layers) const {
    if (!options_.layer_names.empty() && options_.layer_names.size() != layers)
      raise(Errc::bad_configuration, options_.layer_names.size(), " names were given for ",
            counted(layers, "layer"), "; give one for each, or none");
  }

  /// The samples of each of these microbatches.
  template <class In> [[nodiscard]] int samples_of(In const* inputs, std::size_t count) const {
    if (options_.samples) return *options_.samples;
    std::size_t rows = 0;
    if constexpr (detail::Rows<In>::exist)
      for (std::size_t m = 0; m < count; ++m) {
        std::size_t const here = detail::Rows<In>::count(inputs[m]);
        if (m > 0 && here != rows)
          raise(Errc::bad_configuration, "microbatch ", m, " has ", counted(here, "row"),
                ", those before it ", rows,
                ", so that a profile cannot be for either; give ProfilerOptions::samples");
        rows = here;
      }
    if (!std::in_range<int>(rows) || rows == 0)
      raise(Errc::bad_configuration,
            "how many samples are measured is unknown, since the input has no rows; give "
            "ProfilerOptions::samples");
    return static_cast<int>(rows);
  }

  /// A profile without the bytes of values.
  [[nodiscard]] cluster::Profile timed(List<Passes> const& times,
                                       FixedArray<detail::LayerParameters> const& parameters,
                                       int samples) const {
    cluster::Profile profile;
    profile.name = options_.name;
    profile.batch = samples;
    profile.device = options_.device;
    for (std::size_t l = 0; l < times.size(); ++l) {
      cluster::Layer layer;
      layer.name = options_.layer_names.empty() ? std::to_string(l) : options_.layer_names[l];
      layer.forward_s = median(times[l].forward);
      double const weight_s = median(times[l].weight);
      layer.backward_s = median(times[l].input) + weight_s;
      if (weight_s > 0) layer.backward_weight_s = weight_s;
      layer.parameter_bytes = parameters[l].sent_bytes();
      profile.layers.push_back(std::move(layer));
    }
    return profile;
  }

  template <class Clock, class Run> static double seconds(Run&& run) {
    auto const begin = Clock::now();
    run();
    return std::chrono::duration<double>(Clock::now() - begin).count();
  }

  /// The median; 0 of no values.
  static double median(std::vector<double> values) {
    if (values.empty()) return 0;
    auto const middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    return *middle;
  }

  ProfilerOptions options_;
};

}  // namespace stagger
