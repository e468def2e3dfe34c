// SPDX-License-Identifier: Apache-2.0
// DAPPLE's comparison with GPipe by runs of the engine: two stages, real layers, real memory, in
// virtual time, where F = 1 and B = 2.
#include <stagger/train/planned.hpp>

#include "catch.hpp"

#include <vector>

#include <stagger/schedule/gpipe.hpp>

#include "engine/row_oracle.hpp"

namespace dapple_run_test {

using namespace small_model;

namespace {

struct Outcome {
  double per_microbatch_s = 0;
  double activations = 0;
};

Outcome outcome(Made const& schedule, int microbatches, bool recompute) {
  sg::Options options;
  options.recompute = recompute;
  options.record = true;
  options.seed = run_seed;
  auto train =
      row_model::pipeline(sg::sim::VirtualClock{.costs = sg::schedule::Costs::uniform(1, 1, 1)},
                          {2}, schedule, options);
  auto const data = row_model::batch(0, microbatches, 4, false);
  (void)sg::run(train.step(data));
  double end = 0;
  for (auto const& span : train.timeline().spans) end = std::max(end, span.end_s);
  return {end / microbatches, static_cast<double>(train.memory().activations)};
}

}  // namespace

TEST_CASE(
    "train/DAPPLE C9: 16 microbatches over GPipe's 2 give 1.41 times the throughput, and "
    "memory does not grow",
    "[train]") {
  using namespace sg::schedule;
  auto const gpipe = outcome(made(GPipe{}), 2, false);
  auto const early = outcome(made(OneFOneB{}), 16, false);
  CHECK(gpipe.per_microbatch_s / early.per_microbatch_s ==
        Approx((16.0 / 17) / (2.0 / 3)).epsilon(1e-9));
  CHECK(early.activations <= gpipe.activations);
  CHECK(early.activations == outcome(made(OneFOneB{}), 64, false).activations);
  CHECK(outcome(made(GPipe{}), 16, false).activations > 2 * early.activations);
}

TEST_CASE("train/DAPPLE C9: recomputation costs a third of the time and saves memory", "[train]") {
  using namespace sg::schedule;
  auto const plain = outcome(made(GPipe{}), 16, false);
  auto const again = outcome(made(OneFOneB{}), 16, true);
  auto const early = outcome(made(OneFOneB{}), 16, false);
  double const slower = again.per_microbatch_s / early.per_microbatch_s;
  CHECK(slower == Approx(4.0 / 3).epsilon(0.02));
  CHECK(slower > 1.15);
  CHECK(slower < 1.40);
  CHECK(again.activations < plain.activations);
}

}  // namespace dapple_run_test
