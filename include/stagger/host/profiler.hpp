// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A profile of a user's model, measured layer by layer on the calling thread.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <stagger/cluster/profile.hpp>
#include <stagger/core/error.hpp>
#include <stagger/core/text.hpp>
#include <stagger/engine/slots.hpp>
#include <stagger/model/sequential.hpp>

namespace stagger::host {

/// How a model is measured.
struct ProfilerOptions {
  std::string name = "model";
  std::string device = "host";
  int batch = 1;     ///< samples in the input that is given
  int warm_ups = 2;  ///< runs of each layer that are discarded
  int repeats = 9;   ///< runs that count, of which the median is taken
};

namespace detail {

/// Measures one layer after the other, each on the output of the one before.
class LayerProfiler {
 public:
  explicit LayerProfiler(ProfilerOptions const& options) : options_(options) {
    context_.begin_step(0, 1, true);
  }

  /// Layers, runs of them and chains of them, from an input on.
  /// @return the last one's output
  template <class X, class First, class... Rest>
  auto chain(X const& x, First& first, Rest&... rest) {
    if constexpr (sizeof...(Rest) == 0)
      return through(x, first);
    else
      return chain(through(x, first), rest...);
  }

  [[nodiscard]] std::vector<cluster::Layer>& layers() noexcept { return layers_; }

 private:
  template <class X, class L> auto through(X const& x, L& layer) { return measure(x, layer); }
  template <class X, class L> X through(X x, std::vector<L>& run) {
    for (L& layer : run) x = measure(x, layer);
    return x;
  }
  template <class X, class... L> auto through(X const& x, Sequential<L...>& sequential) {
    return std::apply([&](auto&... each) { return chain(x, each...); }, sequential.layers());
  }

  template <class X, class L> typename L::Output measure(X const& x, L& layer) {
    static_assert(Stage<L>, "stagger: a layer that is profiled must be a Stage");
    std::tuple<std::vector<std::vector<float>>, std::vector<std::vector<double>>> memory;
    std::vector<ParameterView> views;
    std::uint64_t parameter_bytes = 0;
    auto const place = [&](auto& parameter) {
      auto initial = parameter.adopt(static_cast<std::uint32_t>(views.size()));
      std::size_t const size = initial.size();
      using Values = decltype(initial);
      auto& held = std::get<std::vector<Values>>(memory);
      parameter_bytes += size * sizeof(typename Values::value_type);
      held.emplace_back(size);  // the gradient
      void* const gradient = held.back().data();
      held.push_back(std::move(initial));
      views.push_back({held.back().data(), gradient, size});
    };
    if constexpr (HasParameters<L>)
      std::apply([&](auto&... parameters) { (place(parameters), ...); }, layer.parameters());

    typename L::Output y{};
    typename L::Input dx{};
    SavedOf<L> saved{};
    std::vector<double> forward, whole, input, weight;
    for (int i = 0; i < options_.warm_ups + options_.repeats; ++i) {
      if (i == options_.warm_ups) forward.clear(), whole.clear(), input.clear(), weight.clear();
      auto const timed = [&](std::vector<double>& times, auto&& work) {
        context_.begin_action(views.data(), static_cast<int>(layers_.size()), 0);
        auto const begin = std::chrono::steady_clock::now();
        work();
        std::chrono::duration<double> const took = std::chrono::steady_clock::now() - begin;
        times.push_back(took.count());
      };
      timed(forward, [&] { layer.forward(context_, x, y, saved); });
      // The output stands in for its gradient: of the same type and size, which is what takes time.
      constexpr bool splits = HasBackwardInput<L> && (!HasParameters<L> || HasBackwardWeight<L>);
      if constexpr (splits)
        timed(input, [&] { layer.backward_input(context_, x, y, dx, saved); });
      else if constexpr (HasBackward<L>)
        timed(whole, [&] { layer.backward(context_, x, y, dx, saved); });
      if constexpr (HasBackwardWeight<L> && (splits || !HasBackward<L>))
        timed(weight, [&] { layer.backward_weight(context_, x, y, saved); });
    }
    cluster::Layer result{.name = text("layer", layers_.size())};
    result.forward_s = median(forward);
    result.backward_s = median(whole) + median(input) + median(weight);
    if (whole.empty()) result.backward_weight_s = median(weight);
    result.activation_bytes = byte_count(y);
    result.parameter_bytes = parameter_bytes;
    result.stash_bytes =
        byte_count(x) + (std::is_same_v<SavedOf<L>, NothingSaved> ? 0 : byte_count(saved));
    layers_.push_back(std::move(result));
    return y;
  }

  [[nodiscard]] static double median(std::vector<double>& times) {
    if (times.empty()) return 0;
    auto const middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
    std::nth_element(times.begin(), middle, times.end());
    return *middle;
  }

  ProfilerOptions const& options_;
  Context context_{};
  std::vector<cluster::Layer> layers_{};
};

}  // namespace detail

/// Measures each layer's forward, input gradient and weight gradient, and counts its activation,
/// parameters and what it keeps from forward to backward (its input and its saved state).
///
/// Times are medians; layers are run one after the other on the calling thread, each on what the
/// one before computed from `input`. A layer whose backward is one action has no share of the
/// weight gradient. The model is a copy: its parameters are the initial ones and stay so.
/// @param  input   one microbatch of options.batch samples
/// @throws Error   bad_configuration for a batch, warm-ups or repeats that cannot be; else what a
///                 layer throws
template <class X, class... L>
[[nodiscard]] cluster::Profile profile(Sequential<L...> model, X const& input,
                                       ProfilerOptions const& options = {}) {
  if (options.batch < 1 || options.warm_ups < 0 || options.repeats < 1)
    throw Error(Errc::bad_configuration,
                text("a batch of ", options.batch, ", ", options.warm_ups, " warm-ups and ",
                     options.repeats, " repeats measure nothing; use 1, 0 and 1 or more"));
  detail::LayerProfiler profiler(options);
  std::apply([&](auto&... layers) { (void)profiler.chain(input, layers...); }, model.layers());
  cluster::Profile result{.name = options.name,
                          .batch = options.batch,
                          .device = options.device,
                          .layers = std::move(profiler.layers())};
  require_profile(result);
  return result;
}

}  // namespace stagger::host
