// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   One layer with its parameters, without an engine; and its gradients by finite
/// differences.

#include <cmath>
#include <cstring>
#include <random>
#include <tuple>
#include <vector>

#include <stagger/core/tensor.hpp>
#include <stagger/model/stage.hpp>

#include "catch.hpp"

namespace layer_test {

template <class L> class Harness {
 public:
  using Input = typename L::Input;
  using Output = typename L::Output;
  using T = double;
  static_assert(stagger::Stage<L>);

  explicit Harness(L layer) : layer_(std::move(layer)) {
    if constexpr (stagger::HasParameters<L>)
      std::apply([&](auto&... parameter) { (adopt(parameter), ...); }, layer_.parameters());
  }

  Output forward(Input const& x) {
    Output y;
    begin();
    layer_.forward(context_, x, y, saved_);
    return y;
  }
  Input backward_input(Input const& x, Output const& dy) {
    Input dx;
    begin();
    layer_.backward_input(context_, x, dy, dx, saved_);
    return dx;
  }
  void backward_weight(Input const& x, Output const& dy) {
    begin();
    layer_.backward_weight(context_, x, dy, saved_);
  }

  std::vector<stagger::Tensor<T>>& values() { return values_; }
  std::vector<stagger::Tensor<T>>& gradients() { return gradients_; }
  std::vector<std::string> const& names() const { return names_; }
  stagger::SavedOf<L>& saved() { return saved_; }
  /// Of every call; its microbatch is `microbatch`.
  stagger::Context& context() { return context_; }

  int microbatch = 0;

 private:
  void adopt(stagger::Parameter<T>& parameter) {
    names_.push_back(parameter.name());
    auto const initial = parameter.adopt(static_cast<std::uint32_t>(values_.size()));
    stagger::Tensor<T> value({initial.size()});
    std::copy(initial.begin(), initial.end(), value.begin());
    stagger::Tensor<T> gradient({initial.size()});
    gradient.fill(0);
    values_.push_back(std::move(value));
    gradients_.push_back(std::move(gradient));
  }

  void begin() {
    views_.clear();
    for (std::size_t i = 0; i < values_.size(); ++i)
      views_.push_back({values_[i].data(), gradients_[i].data(), values_[i].size()});
    context_.begin_action(views_.data(), 0, microbatch);
  }

  L layer_;
  stagger::Context context_;
  stagger::SavedOf<L> saved_;
  std::vector<stagger::ParameterView> views_;
  std::vector<stagger::Tensor<T>> values_;
  std::vector<stagger::Tensor<T>> gradients_;
  std::vector<std::string> names_;
};

inline stagger::Tensor<double> random_tensor(std::initializer_list<std::size_t> extents,
                                             unsigned seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  stagger::Tensor<double> tensor(extents);
  for (double& value : tensor) value = normal(random);
  return tensor;
}

/// Moves parameters away from the zeros and ones they start with.
template <class L> void disturb_parameters(Harness<L>& harness, unsigned seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  for (auto& value : harness.values())
    for (double& v : value) v += 0.3 * normal(random);
}

inline double dot(stagger::Tensor<double> const& a, stagger::Tensor<double> const& b) {
  REQUIRE(a.size() == b.size());
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

inline bool same_bits(stagger::Tensor<double> const& a, stagger::Tensor<double> const& b) {
  return a.size() == b.size() &&
         (a.size() == 0 || std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0);
}

/// Compares `analytic` with central differences of `f` in each of `at`; `f` sees `at` through a
/// reference.
template <class F>
void check_gradient(std::string const& name, stagger::Tensor<double>& at,
                    stagger::Tensor<double> const& analytic, F const& f) {
  REQUIRE(at.size() == analytic.size());
  double worst = 0;
  std::size_t where = 0;
  for (std::size_t i = 0; i < at.size(); ++i) {
    double const kept = at[i];
    double const h = 1e-5;
    at[i] = kept + h;
    double const above = f();
    at[i] = kept - h;
    double const below = f();
    at[i] = kept;
    double const numeric = (above - below) / (2 * h);
    double const error = std::fabs(numeric - analytic[i]) / (1 + std::fabs(numeric));
    if (error > worst) {
      worst = error;
      where = i;
    }
  }
  INFO(name << "[" << where << "] of " << at.size());
  CHECK(worst < 1e-7);
}

/// Every input and every parameter of a layer with a tensor as input.
template <class L> void check_layer(Harness<L>& harness, stagger::Tensor<double> x, unsigned seed) {
  auto const y = harness.forward(x);
  stagger::Tensor<double> dy = random_tensor({y.size()}, seed);
  dy.resize_like(y);
  auto const dx = harness.backward_input(x, dy);
  if constexpr (stagger::HasBackwardWeight<L>) harness.backward_weight(x, dy);
  auto const f = [&] { return dot(harness.forward(x), dy); };
  check_gradient("input", x, dx, f);
  for (std::size_t i = 0; i < harness.values().size(); ++i)
    check_gradient(harness.names()[i], harness.values()[i], harness.gradients()[i], f);
}

}  // namespace layer_test
