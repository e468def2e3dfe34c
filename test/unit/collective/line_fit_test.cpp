// SPDX-License-Identifier: Apache-2.0
#include <stagger/collective/line_fit.hpp>

#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "catch.hpp"

namespace line_fit_test {

using namespace stagger;
using namespace stagger::collective;

namespace {

std::vector<Sample> line(double a, double b) {
  std::vector<Sample> samples;
  for (std::uint64_t bytes = 1024; bytes <= 16U << 20; bytes *= 2) {
    samples.push_back({bytes, a + b * double(bytes)});
  }
  return samples;
}

double relative_error(std::vector<Sample> const& samples, CostLine l) {
  double sum = 0;
  for (auto const& s : samples) {
    double const e = (l.startup_s + l.per_byte_s * double(s.bytes) - s.seconds) / s.seconds;
    sum += e * e;
  }
  return sum;
}

bool refused(std::vector<Sample> const& samples, char const* words) {
  try {
    static_cast<void>(fit_line(samples));
  } catch (Error const& e) {
    return e.code() == Errc::bad_data && std::string(e.what()).find(words) != std::string::npos;
  }
  return false;
}

}  // namespace

TEST_CASE("collective/fit_line: finds the line that made the samples", "[collective]") {
  auto const fit = fit_line(line(633.64e-6, 1.5e-9));
  CHECK(fit.line.startup_s == Approx(633.64e-6));
  CHECK(fit.line.per_byte_s == Approx(1.5e-9));
  CHECK(fit.worst < 1e-9);
  CHECK(fit.affine());
  CHECK_FALSE(fit.clamped);
  CHECK(fit.residuals.size() == 15);
}

TEST_CASE("collective/fit_line: no line nearby has a smaller relative error", "[collective]") {
  std::mt19937 random(9);
  std::normal_distribution<double> noise(1, 0.05);
  for (int trial = 0; trial < 50; ++trial) {
    auto samples = line(5e-4, 2e-9);
    for (auto& s : samples) s.seconds *= noise(random);
    auto const fit = fit_line(samples);
    double const error = relative_error(samples, fit.line);
    for (double da : {-1e-3, 0.0, 1e-3}) {
      for (double db : {-1e-3, 0.0, 1e-3}) {
        CostLine const other{fit.line.startup_s * (1 + da), fit.line.per_byte_s * (1 + db)};
        REQUIRE(error <= relative_error(samples, other) * (1 + 1e-9));
      }
    }
    REQUIRE(fit.line.startup_s == Approx(5e-4).epsilon(0.1));  // not hidden by the largest message
  }
}

TEST_CASE("collective/fit_line: a jump in the middle shows in the residuals", "[collective]") {
  auto samples = line(1e-4, 1e-9);
  for (auto& s : samples) s.seconds *= s.bytes > 200'000 ? 2 : 1;
  auto const fit = fit_line(samples);
  CHECK_FALSE(fit.affine());
  CHECK(fit.worst > 0.15);
}

TEST_CASE("collective/fit_line: a start-up below zero is set to zero and told", "[collective]") {
  std::vector<Sample> const samples{{1000, 1e-6}, {2000, 3e-6}, {4000, 7e-6}};
  auto const fit = fit_line(samples);
  CHECK(fit.clamped);
  CHECK(fit.line.startup_s == 0);
  CHECK(fit.line.per_byte_s > 0);
}

TEST_CASE("collective/fit_per_byte: with a given start-up only the slope is left", "[collective]") {
  auto const fit = fit_per_byte(line(2e-4, 3e-9), 2e-4);
  CHECK(fit.line.startup_s == 2e-4);
  CHECK(fit.line.per_byte_s == Approx(3e-9));
  CHECK_THROWS_AS(fit_per_byte(line(2e-4, 3e-9), -1), Error);
}

TEST_CASE("collective/fit_line: samples that make no line are refused", "[collective]") {
  CHECK(refused({}, "at least two sizes"));
  CHECK(refused({{10, 1}}, "at least two sizes"));
  CHECK(refused({{10, 1}, {10, 2}}, "at least two sizes"));
  CHECK(refused({{10, 1}, {20, -1}}, "sample 1"));
  CHECK(refused({{10, 0}, {20, 1}}, "sample 0"));
  CHECK(refused({{10, 1}, {20, std::nan("")}}, "sample 1"));
  CHECK(refused({{10, 1}, {20, std::numeric_limits<double>::infinity()}}, "sample 1"));
  CHECK(refused({{10, 2}, {20, 1}}, "per byte"));  // faster when larger
  CHECK(refused({{10, 1}, {20, 1}}, "per byte"));
}

}  // namespace line_fit_test
