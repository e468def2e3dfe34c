// SPDX-License-Identifier: Apache-2.0
// HetPipe's theorem: the regret of workers that exchange waves, with real gradients under a virtual
// clock, is below its bounds.
// Source: Park et al., "HetPipe", USENIX ATC 2020, section 6.
#include <stagger/staleness/wave_synchronous.hpp>

#include "catch.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "train/hetpipe_theory.hpp"

namespace wave_convergence_claims_test {

using namespace hetpipe_theory;

namespace {

/// Of the theorem; where nothing is stale at all, 1 for each worker.
double kappa(Setting const& of) {
  return of.workers * std::max(1, 2 * of.s_global() + of.s_local());
}

struct Regret {
  double value = 0;   // mean of f_t at the weights that its minibatch saw
  double finite = 0;  // bounds
  double theorem = 0;
};

/// @param total  minibatches of all workers
Regret regret(Setting const& setting, int total) {
  // M at the start, from w = 0
  Falling const falling{std::sqrt(off({}) / kappa(setting)), static_cast<double>(setting.workers)};
  Course const course = run(setting, setting.waves(), Distance{}, falling, total / setting.workers,
                            {.worker = 0, .times = 4}, 0.7, {.lines = 1});
  double m2 = off({});
  course.in_reference_order(falling, [&](auto const&, std::size_t, std::size_t, auto const& next) {
    m2 = std::max(m2, off(next));
  });
  double const t = total / setting.workers * setting.workers;
  return {.value = course.loss,
          .finite = (falling.sigma * std::sqrt(t) + m2 * std::sqrt(t) / falling.sigma +
                     falling.sigma * setting.most_off() * (setting.window() + 2 * std::sqrt(t))) /
                    t,
          .theorem = 4 * std::sqrt(m2 * kappa(setting) / t)};
}

}  // namespace

TEST_CASE("staleness/HetPipe C21: the regret is below the bounds, and falls with the root of time",
          "[staleness]") {
  for (Setting const& setting :
       {Setting{1, 1, 0}, Setting{1, 4, 0}, Setting{4, 1, 0}, Setting{4, 1, 3}, Setting{4, 4, 0},
        Setting{4, 4, 1}, Setting{2, 3, 2}}) {
    Regret const few = regret(setting, 1600), many = regret(setting, 6400);
    CAPTURE(setting.workers, setting.in_flight, setting.distance, few.value, few.finite,
            few.theorem, many.value, many.finite, many.theorem);
    CHECK(few.value > 0);
    for (Regret const& one : {few, many}) {
      CHECK(one.value <= one.finite);
      CHECK(one.value <= one.theorem);
    }
    CHECK(2 * many.value <= few.value);
  }
}

}  // namespace wave_convergence_claims_test
