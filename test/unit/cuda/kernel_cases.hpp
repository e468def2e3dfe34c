// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The library's kernels for parameters, held against the host: on the stand-in and on a GPU.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include "catch.hpp"

#include <stagger/core/random.hpp>
#include <stagger/cuda/kernels.hpp>
#include <stagger/cuda/tensor.hpp>

namespace kernel_cases {

namespace sg = stagger;

template <class T> sg::ElementType type_of() {
  return std::is_same_v<T, float> ? sg::ElementType::f32 : sg::ElementType::f64;
}
template <class T> std::vector<T> numbers(std::uint64_t seed, std::size_t size) {
  std::vector<T> all(size);
  for (std::size_t i = 0; i < size; ++i)
    all[i] = static_cast<T>(static_cast<double>(sg::random_bits(seed, {i}) >> 40U) / (1 << 23) - 1);
  return all;
}
inline void finish() { sg::cuda::check(cudaStreamSynchronize(sg::cuda::stream()), "wait"); }
inline void require(cudaError_t result) { sg::cuda::check(result, "launch a kernel"); }
template <class T> sg::cuda::Tensor<T> on_device(std::vector<T> const& from) {
  sg::cuda::Tensor<T> to({from.size()});
  to.upload(from);
  finish();
  return to;
}
template <class T> std::vector<T> on_host(sg::cuda::Tensor<T> const& from) {
  std::vector<T> to(from.size());
  from.download(to);
  finish();
  return to;
}

/// Whether each pair differs by at most `tolerance` roundings of the larger numbers among them.
template <class T> bool close(std::vector<T> const& a, std::vector<T> const& b, double tolerance) {
  double const most = tolerance * static_cast<double>(std::numeric_limits<T>::epsilon());
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [&](T x, T y) {
    return std::abs(static_cast<double>(x - y)) <=
           most * std::max(1.0, std::abs(static_cast<double>(x)));
  });
}

/// Three steps of a rule on both.
/// @param tolerance  in roundings; 0: the same bits
template <class T, class Rule>
void check_update(Rule rule, std::size_t size, bool decays, double tolerance) {
  CAPTURE(size, decays, Rule::states, sizeof(T));
  std::vector<T> value = numbers<T>(1, size);
  std::vector<T> states[2] = {std::vector<T>(size), std::vector<T>(size)};
  auto value_there = on_device(value);
  sg::cuda::Tensor<T> states_there[2] = {on_device(states[0]), on_device(states[1])};
  auto const rule_there = on_device(std::vector<Rule>{rule});
  double const factor = 0.375;
  auto const scale = on_device(std::vector<sg::cuda::GradientScale>{{.factor = factor}});
  for (std::int64_t step = 5; step < 8; ++step) {
    auto const gradient = numbers<T>(static_cast<std::uint64_t>(step), size);
    auto const gradient_there = on_device(gradient);
    auto const steps = on_device(std::vector<sg::cuda::StepNumbers>{{.steps = step - 2}});
    rule.update(sg::OptimizerView<T>{value.data(),
                                     value.data(),
                                     gradient.data(),
                                     {states[0].data(), states[1].data()},
                                     size,
                                     decays},
                factor, step);
    sg::cuda::Update<Rule, T> update;
    update.view = {value_there.data(),
                   value_there.data(),
                   gradient_there.data(),
                   {states_there[0].data(), states_there[1].data()},
                   size,
                   decays};
    update.rule = rule_there.data();
    update.scale = scale.data();
    update.numbers = steps.data();
    update.number = 2;
    require(sg::cuda::LaunchUpdate{}(update, sg::cuda::stream()));
    finish();
  }
  CHECK(close(on_host(value_there), value, tolerance));
  for (std::size_t s = 0; s < Rule::states; ++s)
    CHECK(close(on_host(states_there[s]), states[s], tolerance));
}

template <class T> void check_gradients(std::size_t size) {
  CAPTURE(size, sizeof(T));
  auto sum = numbers<T>(3, size);
  auto const more = numbers<T>(4, size);
  auto sum_there = on_device(sum);
  auto const more_there = on_device(more);
  auto const& kernels = sg::cuda::parameter_kernels;
  require(kernels.add(type_of<T>(), sum_there.data(), more_there.data(), size, sg::cuda::stream()));
  for (std::size_t i = 0; i < size; ++i) sum[i] += more[i];
  CHECK(on_host(sum_there) == sum);

  long double squares = 0;
  for (T const x : sum) squares += static_cast<long double>(x) * static_cast<long double>(x);
  auto squares_there = on_device(std::vector<double>(2));
  sg::cuda::Tensor<double> scratch({kernels.scratch_size});
  require(kernels.sum_squares(type_of<T>(), sum_there.data(), size, squares_there.data(),
                              scratch.data(), sg::cuda::stream()));
  auto const found = on_host(squares_there);
  CHECK(std::abs(found[0] - static_cast<double>(squares)) <= 1e-12 * found[0]);
  CHECK(found[1] == 0);
}

/// A block of 3 rows is added to one of 5, whose other elements stay.
template <class T> void check_block(std::size_t columns, std::size_t further) {
  CAPTURE(columns, further, sizeof(T));
  std::size_t const stride = columns + further;
  auto sum = numbers<T>(5, 5 * stride);
  auto const more = numbers<T>(6, 3 * (columns + 2 * further));
  auto sum_there = on_device(sum);
  auto const more_there = on_device(more);
  sg::cuda::AddedBlock block;
  block.sum = sum_there.data() + stride + further;
  block.more = more_there.data() + further;
  block.sum_stride = stride;
  block.more_stride = columns + 2 * further;
  block.rows = 3;
  block.columns = columns;
  require(sg::cuda::parameter_kernels.add_block(type_of<T>(), block, sg::cuda::stream()));
  for (std::size_t r = 0; r < 3; ++r)
    for (std::size_t c = 0; c < columns; ++c)
      sum[(r + 1) * stride + further + c] += more[r * block.more_stride + further + c];
  CHECK(on_host(sum_there) == sum);
}

inline void check_scale() {
  auto const sums = on_device(std::vector<double>{9, 16, 0, 144});
  for (double const clip : {12.0, 13.0, 6.5}) {
    auto scale = on_device(std::vector<sg::cuda::GradientScale>(1));
    require(
        sg::cuda::parameter_kernels.scale(sums.data(), 4, clip, scale.data(), sg::cuda::stream()));
    auto const found = on_host(scale)[0];
    CHECK(found.norm == 13);
    CHECK(found.factor == std::min(1.0, clip / 13));
  }
}

/// A step whose sums are not finite, one behind it, and one of the next period.
inline void check_not_finite() {
  double const nan = std::numeric_limits<double>::quiet_NaN();
  auto const bad = on_device(std::vector<double>{1, nan, 4});
  auto const good = on_device(std::vector<double>{1, 4, 4});
  auto memory = on_device(std::vector<sg::cuda::detail::NonFiniteMemory>(1));
  auto value = on_device(std::vector<float>{5});
  auto const gradient = on_device(std::vector<float>{2});
  auto state = on_device(std::vector<float>{0});
  auto const rule = on_device(std::vector<sg::optimizer::Sgd>{{.rate = 1}});
  auto const numbers = on_device(std::vector<sg::cuda::StepNumbers>(1));
  auto const step = [&](sg::cuda::Tensor<double> const& sums, std::int64_t period) {
    sg::cuda::GradientScale begun;
    begun.memory = memory.data();
    begun.period = period;
    auto scale = on_device(std::vector<sg::cuda::GradientScale>{begun});
    require(
        sg::cuda::parameter_kernels.scale(sums.data(), 3, 100, scale.data(), sg::cuda::stream()));
    sg::cuda::Update<sg::optimizer::Sgd, float> update;
    update.view = {value.data(), value.data(), gradient.data(), {state.data(), nullptr}, 1, true};
    update.rule = rule.data();
    update.scale = scale.data();
    update.numbers = numbers.data();
    require(sg::cuda::LaunchUpdate{}(update, sg::cuda::stream()));
    return on_host(scale)[0].not_finite;
  };
  CHECK(step(bad, 1) == 2);
  CHECK(step(good, 1) == -2);
  CHECK(on_host(value)[0] == 5);
  CHECK(step(good, 2) == 0);
  CHECK(on_host(value)[0] == 3);
}

/// All kernels, for numbers of a parameter that one thread, one team, or several teams take.
/// @param tolerance  of updates, in roundings
inline void check_all(double tolerance, std::size_t largest) {
  sg::cuda::Stream const stream;
  sg::cuda::detail::AtPlace const here({stream.get(), nullptr, nullptr});
  for (std::size_t const size : {std::size_t{1}, std::size_t{255}, std::size_t{2048}, largest}) {
    check_gradients<float>(size);
    check_gradients<double>(size);
    for (std::size_t const further : {std::size_t{0}, std::size_t{3}}) {
      check_block<float>(size, further);
      check_block<double>(size, further);
    }
    for (bool const decays : {false, true}) {
      sg::optimizer::Sgd const sgd{.rate = 0.1, .momentum = 0.9, .weight_decay = 0.01};
      sg::optimizer::AdamW const adam{.rate = 1e-2, .weight_decay = 0.05};
      check_update<float>(sgd, size, decays, tolerance);
      check_update<double>(adam, size, decays, tolerance);
      check_update<double>(sgd, size, decays, tolerance);
      check_update<float>(adam, size, decays, tolerance);
    }
  }
  check_scale();
  check_not_finite();
}

}  // namespace kernel_cases
