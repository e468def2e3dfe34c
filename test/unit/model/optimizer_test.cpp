// SPDX-License-Identifier: Apache-2.0
#include <stagger/model/optimizer.hpp>

#include "catch.hpp"

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

namespace optimizer_test {

using stagger::OptimizerView;

namespace {

/// One parameter of T, stepped by the optimizer under test.
template <class T> struct Parameter {
  std::vector<T> value, gradient, first, second;
  bool decays = true;

  explicit Parameter(std::size_t size) : value(size), gradient(size), first(size), second(size) {}

  template <class Optimizer>
  void step(Optimizer const& optimizer, double scale, std::int64_t number) {
    OptimizerView<T> view;
    view.value = value.data();
    view.next = value.data();
    view.gradient = gradient.data();
    view.state = {first.data(), second.data()};
    view.size = value.size();
    view.decays = decays;
    optimizer.update(view, scale, number);
  }
};

/// Steps of random gradients. `reference(i, g, number)` gives the value that element i must have
/// then.
template <class T, class Optimizer, class Reference>
double largest_error(Optimizer const& optimizer, bool decays, double scale, Reference reference) {
  std::mt19937 random(3);
  std::normal_distribution<double> normal;
  Parameter<T> p(5);
  p.decays = decays;
  double error = 0;
  for (std::size_t i = 0; i < p.value.size(); ++i)
    p.value[i] = static_cast<T>(0.1 * static_cast<double>(i) - 0.2);
  for (std::int64_t number = 1; number <= 50; ++number) {
    for (auto& g : p.gradient) g = static_cast<T>(normal(random));
    p.step(optimizer, scale, number);
    for (std::size_t i = 0; i < p.value.size(); ++i) {
      double const expected = reference(i, static_cast<double>(p.gradient[i]) * scale, number);
      error = std::max(error, std::fabs(static_cast<double>(p.value[i]) - expected));
    }
  }
  return error;
}

struct Reference {
  double value[5];
  double first[5] = {};
  double second[5] = {};
  Reference() {
    for (int i = 0; i < 5; ++i) value[i] = 0.1 * i - 0.2;
  }
};

}  // namespace

TEST_CASE("model/Sgd: follows the formula in double precision", "[model]") {
  stagger::optimizer::Sgd sgd;
  sgd.rate = 0.05;
  for (double const momentum : {0.0, 0.9}) {
    for (double const weight_decay : {0.0, 0.1}) {
      for (bool const decays : {true, false}) {
        sgd.momentum = momentum;
        sgd.weight_decay = weight_decay;
        auto const reference = [&, r = Reference{}](std::size_t i, double g, std::int64_t) mutable {
          r.first[i] = momentum * r.first[i] + g + (decays ? weight_decay : 0) * r.value[i];
          return r.value[i] -= 0.05 * r.first[i];
        };
        CAPTURE(momentum, weight_decay, decays);
        CHECK(largest_error<double>(sgd, decays, 0.5, reference) < 1e-14);
        CHECK(largest_error<float>(sgd, decays, 0.5, reference) < 1e-5);
      }
    }
  }
}

TEST_CASE("model/AdamW: follows algorithm 2 of its paper in double precision", "[model]") {
  stagger::optimizer::AdamW adam;
  adam.rate = 0.02;
  adam.weight_decay = 0.3;
  adam.epsilon = 1e-6;
  for (bool const decays : {true, false}) {
    auto const reference = [&, r = Reference{}](std::size_t i, double g,
                                                std::int64_t number) mutable {
      double const t = static_cast<double>(number);
      r.first[i] = 0.9 * r.first[i] + 0.1 * g;
      r.second[i] = 0.999 * r.second[i] + 0.001 * g * g;
      double const m = r.first[i] / (1 - std::pow(0.9, t));
      double const v = r.second[i] / (1 - std::pow(0.999, t));
      return r.value[i] -= 0.02 * (m / (std::sqrt(v) + 1e-6) + (decays ? 0.3 : 0) * r.value[i]);
    };
    CAPTURE(decays);
    CHECK(largest_error<double>(adam, decays, 2.0, reference) < 1e-13);
    CHECK(largest_error<float>(adam, decays, 2.0, reference) < 2e-5);
  }
}

TEST_CASE("model/AdamW: the first step is the rate, whatever the gradient's size", "[model]") {
  for (double const gradient : {1e-3, 1.0, 1e3}) {
    Parameter<double> p(1);
    p.gradient[0] = gradient;
    p.step(stagger::optimizer::AdamW{.rate = 0.1, .weight_decay = 0}, 1, 1);
    CHECK(p.value[0] == Approx(-0.1).epsilon(1e-4));
  }
}

TEST_CASE(
    "model/optimizers: elements do not depend on their neighbours, and may be written elsewhere",
    "[model]") {
  auto const check = [](auto const& optimizer) {
    Parameter<float> whole(7);
    for (std::size_t i = 0; i < 7; ++i) {
      whole.value[i] = static_cast<float>(i) * 0.3F;
      whole.gradient[i] = std::sin(static_cast<float>(i));
    }
    auto parts = whole;
    std::vector<float> elsewhere(7);
    whole.step(optimizer, 0.7, 3);
    for (std::size_t i = 0; i < 7; ++i) {
      OptimizerView<float> view;
      view.value = &parts.value[i];
      view.next = &elsewhere[i];
      view.gradient = &parts.gradient[i];
      view.state = {&parts.first[i], &parts.second[i]};
      view.size = 1;
      optimizer.update(view, 0.7, 3);
    }
    CHECK(elsewhere == whole.value);
    CHECK(parts.first == whole.first);
    CHECK(parts.second == whole.second);
    CHECK(parts.value[3] == 3 * 0.3F);
  };
  check(stagger::optimizer::Sgd{.rate = 0.1, .momentum = 0.5, .weight_decay = 0.01});
  check(stagger::optimizer::AdamW{});
}

}  // namespace optimizer_test
