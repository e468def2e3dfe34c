// SPDX-License-Identifier: Apache-2.0
#include <stagger/model/optimizer.hpp>

#include "catch.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include <stagger/model/lamb.hpp>
#include <stagger/model/muon.hpp>

namespace optimizer_test {

using stagger::OptimizerView;

namespace {

/// One parameter of T, stepped by the optimizer under test.
template <class T> struct Parameter {
  std::vector<T> value, gradient, first, second;
  bool decays = true;
  std::size_t rows = 0;

  explicit Parameter(std::size_t size) : value(size), gradient(size), first(size), second(size) {}

  OptimizerView<T> view(T* next) {
    OptimizerView<T> view;
    view.value = value.data();
    view.next = next;
    view.gradient = gradient.data();
    view.state = {first.data(), second.data()};
    view.size = value.size();
    view.decays = decays;
    view.rows = rows;
    return view;
  }
  template <class Optimizer>
  void step(Optimizer const& optimizer, double scale, std::int64_t number) {
    optimizer.update(view(value.data()), scale, number);
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

namespace {

template <class T> Parameter<T> random_parameter(std::size_t size, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  Parameter<T> p(size);
  for (auto* const block : {&p.value, &p.gradient})
    for (T& number : *block) number = static_cast<T>(normal(random));
  return p;
}
double norm(std::vector<double> const& values) {
  double sum = 0;
  for (double const x : values) sum += x * x;
  return std::sqrt(sum);
}

using Doubles = std::vector<double>;
Doubles doubles(auto const& numbers) { return {numbers.begin(), numbers.end()}; }
double distance(Doubles a, Doubles const& b) {
  for (std::size_t i = 0; i < a.size(); ++i) a[i] = std::fabs(a[i] - b[i]);
  return *std::max_element(a.begin(), a.end());
}

/// A product of matrices [n][k] and [k][m].
Doubles product(Doubles const& a, Doubles const& b, std::size_t n, std::size_t k, std::size_t m) {
  Doubles result(n * m);
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t j = 0; j < m; ++j)
      for (std::size_t l = 0; l < k; ++l) result[i * m + j] += a[i * k + l] * b[l * m + j];
  return result;
}
Doubles transposed(Doubles const& a, std::size_t rows, std::size_t columns) {
  Doubles result(a.size());
  for (std::size_t i = 0; i < rows; ++i)
    for (std::size_t j = 0; j < columns; ++j) result[j * rows + i] = a[i * columns + j];
  return result;
}
/// The Newton-Schulz iteration as it is published, with whole matrices.
Doubles newton_schulz(Doubles x, std::size_t rows, std::size_t columns) {
  if (rows > columns)
    return transposed(newton_schulz(transposed(x, rows, columns), columns, rows), columns, rows);
  double const length = norm(x) + 1e-7;
  for (double& one : x) one /= length;
  for (int step = 0; step < 5; ++step) {
    Doubles const a = product(x, transposed(x, rows, columns), rows, columns, rows);
    Doubles b = product(a, a, rows, rows, rows);
    for (std::size_t i = 0; i < b.size(); ++i) b[i] = -4.7750 * a[i] + 2.0315 * b[i];
    Doubles const more = product(b, x, rows, rows, columns);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = 3.4445 * x[i] + more[i];
  }
  return x;
}

/// The largest difference from the published rule in several steps of a matrix.
template <class T> double muon_error(std::size_t rows, std::size_t columns, bool decays) {
  auto p = random_parameter<T>(rows * columns, 1);
  p.rows = rows;
  p.decays = decays;
  Doubles value = doubles(p.value), velocity(value.size());
  double error = 0;
  for (std::int64_t number = 1; number <= 3; ++number) {
    p.gradient = random_parameter<T>(value.size(), static_cast<unsigned>(number) + 1).gradient;
    Doubles wanted = doubles(p.gradient);
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      wanted[i] *= 0.5;
      velocity[i] = 0.9 * velocity[i] + wanted[i];
      wanted[i] += 0.9 * velocity[i];
    }
    wanted = newton_schulz(std::move(wanted), rows, columns);
    double const length =
        std::sqrt(std::max(1.0, static_cast<double>(rows) / static_cast<double>(columns)));
    for (std::size_t i = 0; i < value.size(); ++i)
      value[i] = (decays ? 1 - 0.1 * 0.2 : 1) * value[i] - 0.1 * length * wanted[i];
    p.step(stagger::optimizer::Muon{.rate = 0.1, .momentum = 0.9, .weight_decay = 0.2}, 0.5,
           number);
    error = std::max(error, distance(doubles(p.value), value));
  }
  return error;
}

}  // namespace

TEST_CASE("model/Lamb: follows algorithm 2 of its paper in double precision", "[model]") {
  stagger::optimizer::Lamb const lamb{.rate = 0.02, .weight_decay = 0.3};
  for (bool const decays : {true, false}) {
    auto p = random_parameter<double>(7, 1);
    p.decays = decays;
    Doubles value = p.value, m(7), v(7), r(7);
    for (std::int64_t number = 1; number <= 50; ++number) {
      p.gradient = random_parameter<double>(7, static_cast<unsigned>(number) + 1).gradient;
      double const t = static_cast<double>(number);
      for (std::size_t i = 0; i < 7; ++i) {
        double const g = 0.5 * p.gradient[i];
        m[i] = 0.9 * m[i] + 0.1 * g;
        v[i] = 0.999 * v[i] + 0.001 * g * g;
        r[i] = m[i] / (1 - std::pow(0.9, t)) / (std::sqrt(v[i] / (1 - std::pow(0.999, t))) + 1e-6) +
               (decays ? 0.3 * value[i] : 0);
      }
      double const trust = norm(value) / norm(r);
      for (std::size_t i = 0; i < 7; ++i) value[i] -= 0.02 * trust * r[i];
      p.step(lamb, 0.5, number);
      REQUIRE(distance(p.value, value) < 1e-13);
    }
  }
}

TEST_CASE("model/Lamb: a norm of 0 does not change the length of a step", "[model]") {
  stagger::optimizer::Lamb const lamb{.rate = 0.1, .weight_decay = 0};
  Parameter<float> zeros(3);
  zeros.gradient = {1, -2, 0.5F};
  zeros.step(lamb, 1, 1);
  CHECK(distance(doubles(zeros.value), {-0.1, 0.1, -0.1}) < 1e-6);
  Parameter<float> still(2);
  still.value = {3, 4};
  still.step(lamb, 1, 1);
  CHECK(still.value == std::vector<float>{3, 4});
}

TEST_CASE("model/Lamb: steps keep their length when gradients have long been zeros", "[model]") {
  // r becomes tiny, and the trust ratio more than a number can be.
  stagger::optimizer::Lamb const lamb{.rate = 0.01, .weight_decay = 0};
  auto const check = [&]<class T>(T gradient, std::int64_t steps) {
    Parameter<T> p(4);
    p.value = {1, 1, 1, 1};
    for (std::int64_t number = 1; number <= steps; ++number) {
      p.gradient = {number <= 5 ? gradient : T{0}, 0, 0, 0};
      auto const before = doubles(p.value);
      p.step(lamb, 1, number);
      REQUIRE(distance(doubles(p.value), before) < 0.02 * norm(before));  // r loses digits
    }
  };
  check(1e-3F, 1200);
  check(1.0, 4000);
}

TEST_CASE("model/Muon: follows its published rule, of matrices of every form", "[model]") {
  std::pair<std::size_t, std::size_t> const forms[] = {
      {1, 1}, {1, 6}, {6, 1}, {2, 2}, {2, 3},   {3, 2},    {4, 4},  {5, 5},
      {5, 9}, {9, 5}, {8, 8}, {7, 8}, {3, 150}, {150, 20}, {20, 75}};
  for (auto const& [rows, columns] : forms) {
    CAPTURE(rows, columns);
    CHECK(muon_error<double>(rows, columns, true) < 1e-11);
    CHECK(muon_error<double>(rows, columns, false) < 1e-11);
    CHECK(muon_error<float>(rows, columns, true) < 2e-3);
  }
}

TEST_CASE("model/Muon: takes each singular value of a matrix where the published polynomial does",
          "[model]") {
  Doubles const singular{1, 0.5, 0.2, 0.1, 0.05, 0.02};
  Parameter<double> p(36);
  p.rows = 6;
  for (std::size_t i = 0; i < 6; ++i) p.gradient[i * 6 + i] = singular[i];
  p.step(stagger::optimizer::Muon{.rate = 1, .momentum = 0}, 1, 1);
  for (std::size_t i = 0; i < 6; ++i) {
    double x = singular[i] / (norm(singular) + 1e-7);
    for (int step = 0; step < 5; ++step)
      x = 3.4445 * x - 4.7750 * std::pow(x, 3) + 2.0315 * std::pow(x, 5);
    CHECK(p.value[i * 6 + i] == Approx(-x).epsilon(1e-12));
    CHECK(x > 0.5);  // "nearly 1"
    CHECK(x < 1.3);
  }
}

TEST_CASE("model/Muon: what is no matrix takes the step of AdamW", "[model]") {
  stagger::optimizer::AdamW const adam{.rate = 0.01, .weight_decay = 0.1};
  auto one = random_parameter<float>(9, 3);
  auto other = one;
  for (std::int64_t number = 1; number <= 3; ++number) {
    one.step(stagger::optimizer::Muon{.others = adam}, 0.7, number);
    other.step(adam, 0.7, number);
    CHECK(one.value == other.value);
  }
}

TEST_CASE(
    "model/optimizers of whole parameters: write elsewhere what they write in place, or how it "
    "changes",
    "[model]") {
  auto const check = [](auto const& optimizer, std::size_t rows) {
    auto p = random_parameter<double>(12, 5);
    p.rows = rows;
    auto kept = p, changed = p;
    Doubles elsewhere(12), change(12);
    p.step(optimizer, 0.7, 2);
    optimizer.update(kept.view(elsewhere.data()), 0.7, 2);
    optimizer.change(changed.view(change.data()), 0.7, 2);
    CHECK(elsewhere == p.value);
    CHECK(kept.first == p.first);
    CHECK(changed.second == p.second);
    for (std::size_t i = 0; i < 12; ++i) change[i] += kept.value[i];
    CHECK(distance(change, p.value) < 1e-14);
  };
  check(stagger::optimizer::Lamb{.rate = 0.1}, 0);
  for (std::size_t const rows : {0U, 1U, 2U, 3U, 4U, 6U, 12U})
    check(stagger::optimizer::Muon{.rate = 0.1, .weight_decay = 0.1}, rows);
}

}  // namespace optimizer_test
