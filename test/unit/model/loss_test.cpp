// SPDX-License-Identifier: Apache-2.0
#include <stagger/model/loss.hpp>

#include "catch.hpp"

#include <algorithm>
#include <cmath>
#include <random>

namespace loss_test {

using stagger::Context;
using stagger::Errc;
using stagger::Error;
using stagger::Tensor;

namespace {

template <class T> Tensor<T> random_tensor(std::size_t rows, std::size_t columns, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  Tensor<T> t({rows, columns});
  for (auto& x : t) x = static_cast<T>(normal(random));
  return t;
}

/// Largest difference between the gradient and central differences of the value.
template <class Loss>
double gradient_error(Loss const& loss, Tensor<double> y, typename Loss::Target const& target,
                      double scale) {
  Context context;
  Tensor<double> dy;
  double const sum = loss.value_and_gradient(context, y, target, scale, dy);
  CHECK(sum == loss.value(context, y, target));
  CHECK(dy.extents() == y.extents());
  double error = 0;
  for (std::size_t i = 0; i < y.size(); ++i) {
    double const h = 1e-5;
    double const x = y[i];
    y[i] = x + h;
    double const above = loss.value(context, y, target);
    y[i] = x - h;
    double const below = loss.value(context, y, target);
    y[i] = x;
    error = std::max(error, std::fabs(dy[i] - scale * (above - below) / (2 * h)));
  }
  return error;
}

Errc code_of(auto call) {
  try {
    call();
  } catch (Error const& error) {
    return error.code();
  }
  return Errc::io;
}

}  // namespace

TEST_CASE("model/MeanSquaredError: value by hand, gradient by finite differences", "[model]") {
  Context context;
  stagger::loss::MeanSquaredError<> const loss;
  Tensor<float> y({2, 2});
  Tensor<float> target({2, 2});
  for (std::size_t i = 0; i < 4; ++i) {
    y[i] = static_cast<float>(i);
    target[i] = 1;
  }
  CHECK(loss.terms(target) == 4);
  CHECK(loss.value(context, y, target) == 1 + 0 + 1 + 4);
  CHECK(gradient_error(stagger::loss::MeanSquaredError<double>{}, random_tensor<double>(3, 4, 1),
                       random_tensor<double>(3, 4, 2), 0.125) < 1e-9);
  Tensor<float> shorter({3});
  CHECK(code_of([&] { static_cast<void>(loss.value(context, y, shorter)); }) == Errc::mismatch);
  CHECK_THROWS_WITH(loss.value(context, y, shorter),
                    Catch::Contains("4 elements") && Catch::Contains("the target 3"));
}

TEST_CASE("model/CrossEntropy: value by hand, gradient by finite differences", "[model]") {
  Context context;
  stagger::loss::CrossEntropy<double> const loss;
  Tensor<std::int32_t> target({3});
  target[0] = 4;
  target[1] = 0;
  target[2] = 2;
  auto const y = random_tensor<double>(3, 5, 3);
  double sum = 0;
  for (std::size_t r = 0; r < 3; ++r) {
    double total = 0;
    for (std::size_t c = 0; c < 5; ++c) total += std::exp(y[r * 5 + c]);
    sum -= std::log(std::exp(y[r * 5 + static_cast<std::size_t>(target[r])]) / total);
  }
  CHECK(loss.terms(target) == 3);
  CHECK(loss.value(context, y, target) == Approx(sum).epsilon(1e-12));
  CHECK(gradient_error(loss, y, target, 0.25) < 1e-9);
  Tensor<double> equal({1, 8});
  equal.fill(3);
  Tensor<std::int32_t> any({1});
  any[0] = 5;
  CHECK(loss.value(context, equal, any) == Approx(std::log(8)));
}

TEST_CASE("model/CrossEntropy: rows of the class that is ignored count as nothing", "[model]") {
  Context context;
  stagger::loss::CrossEntropy<double> const plain;
  stagger::loss::CrossEntropy<double> const loss{.ignored = -1};
  auto const y = random_tensor<double>(3, 5, 3);
  Tensor<double> rest({2, 5});
  std::copy(y.data() + 5, y.data() + 15, rest.data());
  auto const target = Tensor<std::int32_t>::of({-1, 4, 2});
  auto const counted = Tensor<std::int32_t>::of({4, 2});
  CHECK(loss.terms(target) == 2);
  CHECK(loss.terms(counted) == 2);
  CHECK(loss.value(context, y, target) == plain.value(context, rest, counted));
  CHECK(gradient_error(loss, y, target, 0.25) < 1e-9);
  Tensor<double> dy;
  loss.value_and_gradient(context, y, target, 1, dy);
  CHECK(std::all_of(dy.data(), dy.data() + 5, [](double d) { return d == 0; }));
  CHECK(code_of([&] { static_cast<void>(plain.value(context, y, target)); }) == Errc::bad_data);
  CHECK(loss.terms(loss.padding()) == 0);
  CHECK(code_of([&] { static_cast<void>(plain.padding()); }) == Errc::bad_configuration);
}

TEST_CASE("model/CrossEntropy: logits of any size give finite losses", "[model]") {
  Context context;
  stagger::loss::CrossEntropy<> const loss;
  Tensor<float> y({1, 3});
  y[0] = 1e30F;
  y[1] = -1e30F;
  y[2] = 0;
  Tensor<std::int32_t> target({1});
  Tensor<float> dy;
  target[0] = 0;
  CHECK(loss.value_and_gradient(context, y, target, 1, dy) == 0);
  CHECK(dy[0] == 0);
  target[0] = 1;
  CHECK(loss.value_and_gradient(context, y, target, 1, dy) == Approx(2e30));
  for (float const d : dy) CHECK(std::isfinite(d));
}

TEST_CASE("model/CrossEntropy: a target that does not fit is named", "[model]") {
  Context context;
  stagger::loss::CrossEntropy<> const loss;
  Tensor<float> const y = random_tensor<float>(2, 3, 1);
  Tensor<float> dy;
  Tensor<std::int32_t> target({2});
  target[0] = 0;
  for (std::int32_t const wrong : {-1, 3, 1000}) {
    target[1] = wrong;
    CHECK_THROWS_WITH(loss.value_and_gradient(context, y, target, 1, dy),
                      Catch::Contains("class " + std::to_string(wrong) + " in row 1") &&
                          Catch::Contains("0 to 2"));
    CHECK(code_of([&] { static_cast<void>(loss.value(context, y, target)); }) == Errc::bad_data);
  }
  Tensor<std::int32_t> const longer({5});
  CHECK_THROWS_WITH(loss.value(context, y, longer),
                    Catch::Contains("2 rows") && Catch::Contains("5"));
  Tensor<std::int32_t> shorter({1});
  shorter[0] = 0;
  CHECK_THROWS_WITH(loss.value(context, y, shorter),
                    Catch::Contains("2 rows and the target 1; give each row one class, or let each "
                                    "layer size its output anew for each microbatch"));
}

}  // namespace loss_test
