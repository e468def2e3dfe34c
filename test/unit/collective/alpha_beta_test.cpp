// SPDX-License-Identifier: Apache-2.0
#include <stagger/collective/alpha_beta.hpp>

#include <cmath>
#include <limits>
#include <map>
#include <string>

#include "catch.hpp"
#include "collective/steps.hpp"

namespace alpha_beta_test {

using namespace stagger;
using namespace stagger::collective;
using namespace collective_steps;

namespace {
constexpr Link ethernet{45.26e-6, 0.8e-9, 0.114e-9};
constexpr Algorithm all[] = {Algorithm::slices, Algorithm::ring, Algorithm::recursive_doubling,
                             Algorithm::halving_doubling, Algorithm::tree};
}  // namespace

TEST_CASE("collective/cost: the published start-ups follow from one message's (R1)",
          "[collective]") {
  CHECK(std::abs(cost(Algorithm::ring, 2, ethernet).startup_s - 90.52e-6) < 0.01e-6);
  CHECK(std::abs(cost(Algorithm::ring, 4, ethernet).startup_s - 271.56e-6) < 0.01e-6);
  CHECK(std::abs(cost(Algorithm::ring, 8, ethernet).startup_s - 633.64e-6) < 0.01e-6);
}

TEST_CASE("collective/cost: ring and halving-doubling lines at 2 to 64 nodes", "[collective]") {
  struct {
    int n;
    double ring_a, b, halving_a;
  } const rows[] = {{2, 90.52, 0.857, 90.52},     {4, 271.56, 1.286, 181.04},
                    {8, 633.64, 1.500, 271.56},   {16, 1357.80, 1.607, 362.08},
                    {32, 2806.12, 1.660, 452.60}, {64, 5702.76, 1.687, 543.12}};
  for (auto const& r : rows) {
    auto const ring = cost(Algorithm::ring, r.n, ethernet);
    auto const halving = cost(Algorithm::halving_doubling, r.n, ethernet);
    CHECK(ring.startup_s * 1e6 == Approx(r.ring_a).epsilon(1e-6));
    CHECK(halving.startup_s * 1e6 == Approx(r.halving_a).epsilon(1e-6));
    CHECK(std::abs(ring.per_byte_s * 1e9 - r.b) < 0.00101);
    CHECK(halving.per_byte_s == Approx(ring.per_byte_s));
    CHECK(cost(Algorithm::slices, r.n, ethernet) == ring);
  }
}

TEST_CASE("collective/cost: merging two 200 KB messages of 8 nodes saves the start-up (R2)",
          "[collective]") {
  auto const line = cost(Algorithm::ring, 8, ethernet);
  CHECK(line.seconds(200'000) == Approx(0.93e-3).epsilon(0.01));
  CHECK(line.seconds(400'000) == Approx(1.23e-3).epsilon(0.01));
  CHECK(2 * line.seconds(200'000) - line.seconds(400'000) == Approx(0.634e-3).epsilon(0.001));
  CHECK(line.per_byte_s == Approx(1.5e-9).epsilon(0.001));  // printed: 0.3 ms per 200 KB
}

TEST_CASE("collective/cost: a walk over the steps of every rank takes the time of the line",
          "[collective]") {
  // Each step lasts alpha + beta * bytes for the longest message, + gamma per byte that is added.
  constexpr std::size_t bytes = 1 << 20;
  for (auto algorithm : all) {
    if (algorithm == Algorithm::slices) continue;
    for (int n : {2, 4, 8, 16}) {
      double total = 0;
      for (int i = 0; i < step_count(algorithm, n); ++i) {
        double longest = 0;
        for (int r = 0; r < n; ++r) {
          Step const s = step(algorithm, r, n, bytes, i);
          if (s.from < 0) continue;
          double const moved = double(s.in.size());
          double const added = s.arrival == Arrival::copy ? 0 : moved;
          longest = std::max(longest, ethernet.alpha_s + ethernet.beta_s_per_byte * moved +
                                          ethernet.gamma_s_per_byte * added);
        }
        total += longest;
      }
      CHECK(cost(algorithm, n, ethernet).seconds(bytes) == Approx(total).epsilon(1e-9));
    }
  }
}

TEST_CASE("collective/cost: one rank and no bytes cost nothing", "[collective]") {
  for (auto algorithm : all) {
    CHECK(cost(algorithm, 1, ethernet) == CostLine{});
    CHECK(cost(algorithm, 4, ethernet).seconds(0) == 0);
    CHECK(cost(algorithm, 4, ethernet).seconds(1) > 0);
  }
}

TEST_CASE("collective/cost: ranks that cannot be served and bad links are refused",
          "[collective]") {
  auto const says = [](Algorithm algorithm, int n, Link link, char const* words) {
    try {
      static_cast<void>(cost(algorithm, n, link));
    } catch (Error const& e) {
      return e.code() == Errc::bad_configuration &&
             std::string(e.what()).find(words) != std::string::npos;
    }
    return false;
  };
  CHECK(says(Algorithm::recursive_doubling, 6, ethernet, "ring"));
  CHECK(says(Algorithm::halving_doubling, 12, ethernet, "12"));
  CHECK(says(Algorithm::ring, 0, ethernet, "0"));
  CHECK(says(Algorithm::ring, 2, {-1, 0, 0}, "alpha"));
  CHECK(says(Algorithm::ring, 2, {0, std::nan(""), 0}, "beta"));
  CHECK(says(Algorithm::ring, 2, {0, 0, std::numeric_limits<double>::infinity()}, "gamma"));
  CHECK(cost(Algorithm::tree, 6, ethernet).startup_s == Approx(6 * ethernet.alpha_s));
}

}  // namespace alpha_beta_test
