// SPDX-License-Identifier: Apache-2.0
#include <stagger/plan/latency.hpp>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <stagger/core/error.hpp>

#include "catch.hpp"

namespace latency_test {

using namespace stagger;
using namespace stagger::plan;

namespace {

using Stages = std::vector<StageTime>;
constexpr StageTime no_transfer{};

/// The pivot by its definition, ties to the larger stage.
std::size_t pivot_of(Stages const& v, int M) {
  std::size_t best = 0;
  double most = -1;
  double before = 0;
  for (std::size_t s = 0; s < v.size(); ++s) {
    before += v[s].forward_s + v[s].backward_s;
    double const value = (M - 1) * (v[s].forward_s + v[s].backward_s) + before;
    if (value >= most) best = s, most = value;
  }
  return best;
}

}  // namespace

TEST_CASE("plan/latency: the estimate of DAPPLE's equations, by hand (A1)", "[plan]") {
  auto const three = latency(Stages{{1, 2}, no_transfer, {1, 2}, no_transfer, {1, 2}}, 4);
  CHECK(three.pivot == 4);
  CHECK(three.seconds == 18);
  CHECK(three.warm_up_s == 3);
  CHECK(three.steady_s == 9);
  CHECK(three.ending_s == 6);
  CHECK(latency(Stages{{1, 2, 5}}, 4).seconds == 17);
  auto const front = latency(Stages{{3, 6}, no_transfer, {1, 2}}, 4);
  CHECK(front.seconds == 36);
  CHECK(front.pivot == 0);
  auto const reduced = latency(Stages{{1, 2}, no_transfer, {1, 2, 10}}, 2);
  CHECK(reduced.seconds == 17);
  CHECK(reduced.pivot == 2);
  auto const linked = latency(Stages{{2, 4, 3}, {1, 1}, {2, 4}, {1, 1}, {2, 4, 6}}, 8);
  CHECK(linked.seconds == 67);
  CHECK(linked.pivot == 4);
  // Behind the pivot, the backwards of all stages between hide part of an all-reduce: 45 - 5 - 0.
  auto const behind = latency(Stages{{10, 10}, no_transfer, {1, 5}, no_transfer, {1, 1, 45}}, 5);
  CHECK(behind.pivot == 0);
  CHECK(behind.seconds == 130);
}

TEST_CASE("plan/latency: the printed equations are too low, and stand under their own name",
          "[plan]") {
  CHECK(latency(Stages{{1, 2, 5}}, 4, Form::printed).seconds == 4 * 1 + 2 * 2 + 5);
  CHECK(latency(Stages{{1, 2}, no_transfer, {1, 2, 10}}, 2, Form::printed).seconds == 13);
  std::mt19937 random(3);
  auto const up_to = [&](double x) { return std::uniform_real_distribution<>(0, x)(random); };
  for (int round = 0; round < 500; ++round) {
    Stages v;
    for (int s = 0; s < 3; ++s) v.push_back({up_to(2), up_to(4), s % 2 == 0 ? up_to(3) : 0});
    CHECK(latency(v, 4, Form::printed).seconds <= latency(v, 4).seconds + 1e-12);
  }
}

TEST_CASE("plan/latency: the pivot is the stage that ends last if it never waits", "[plan]") {
  std::mt19937 random(5);
  auto const whole = [&] { return static_cast<double>(random() % 5); };
  for (int round = 0; round < 5000; ++round) {
    Stages v;
    auto const count = 1 + 2 * (random() % 5);
    for (std::size_t s = 0; s < count; ++s) v.push_back({whole(), whole(), whole()});
    int const M = 1 + static_cast<int>(random() % 6);
    CAPTURE(round, M, count);
    CHECK(latency(v, M).pivot == pivot_of(v, M));
  }
}

TEST_CASE(
    "plan/latency: equal stages that hide their transfers take (M + (1 + alpha)(S - 1))(F + B)",
    "[plan]") {
  for (int S = 1; S <= 6; ++S) {
    for (double const alpha : {0.0, 0.1, 0.5, 1.0}) {
      Stages v;
      for (int s = 0; s < S; ++s) {
        if (s > 0) v.push_back({alpha * 1.5, alpha * 1.5});
        v.push_back({1, 2});
      }
      for (int const M : {1, 4, 16})
        CHECK(latency(v, M).seconds == Approx((M + (1 + alpha) * (S - 1)) * 3));
    }
  }
  double const efficiency =
      16 * 3 /
      latency(Stages{{1, 2}, {.15, .15}, {1, 2}, {.15, .15}, {1, 2}, {.15, .15}, {1, 2}}, 16)
          .seconds;
  CHECK(efficiency == Approx(0.829).epsilon(0.001));
}

TEST_CASE("plan/latency: can be asked for while compiling", "[plan]") {
  constexpr StageTime one[]{{1, 2, 5}};
  STATIC_REQUIRE(latency(one, 4).seconds == 17);
}

TEST_CASE("plan/latency: what has no time is refused by number", "[plan]") {
  auto const says = [](Stages const& v, int M, char const* words) {
    try {
      (void)latency(v, M);
    } catch (Error const& error) {
      CHECK(std::string(error.what()).find(words) != std::string::npos);
      return;
    }
    FAIL("no error");
  };
  says({}, 1, "without stages");
  says({{1, 2}}, 0, "0 microbatches");
  says({{1, 2}, {}, {-1, 2}}, 2, "stage 2 takes -1 s forward");
  says({{1, std::numeric_limits<double>::quiet_NaN()}}, 2, "nan");
  says({{1, std::numeric_limits<double>::infinity()}}, 2, "inf");
}

}  // namespace latency_test
