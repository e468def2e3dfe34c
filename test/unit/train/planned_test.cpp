// SPDX-License-Identifier: Apache-2.0
#include <stagger/train/planned.hpp>

#include "catch.hpp"

#include <cstdint>
#include <map>
#include <vector>

#include <stagger/plan/auto.hpp>
#include <stagger/program/lay_out.hpp>
#include <stagger/schedule/gpipe.hpp>
#include <stagger/schedule/proof/verify.hpp>
#include <stagger/train/footprint.hpp>
#include <stagger/train/profiler.hpp>

#include "engine/row_oracle.hpp"
#include "same_memory.hpp"

namespace planned_test {

using namespace small_model;
namespace plan = sg::plan;

namespace {

plan::PlanStage stage(int first, int last, std::vector<int> devices, int warm_up) {
  return {.first = first, .last = last, .devices = std::move(devices), .warm_up = warm_up};
}

plan::Plan plan_of(std::vector<plan::PlanStage> stages, int microbatches, bool recompute) {
  return {.stages = std::move(stages), .microbatches = microbatches, .recompute = recompute};
}

std::vector<plan::Plan> plans() {
  std::vector<plan::Plan> all;
  for (bool const recompute : {false, true})
    for (int const microbatches : {1, 4, 7}) {
      all.push_back(plan_of({stage(0, 6, {0}, 1)}, microbatches, recompute));
      all.push_back(plan_of({stage(0, 6, {0, 1, 2}, 1)}, microbatches, recompute));
      all.push_back(plan_of({stage(0, 2, {0}, 2), stage(3, 6, {1}, 1)}, microbatches, recompute));
      all.push_back(plan_of({stage(0, 0, {0}, 3), stage(1, 6, {1}, 2)}, microbatches, recompute));
      all.push_back(plan_of({stage(0, 1, {1, 2}, 5), stage(2, 3, {0}, 3), stage(4, 6, {3, 4}, 1)},
                            microbatches, recompute));
      all.push_back(plan_of({stage(0, 1, {0, 1}, 2), stage(2, 4, {2, 3}, 2), stage(5, 6, {4}, 1)},
                            microbatches, recompute));
      all.push_back(
          plan_of({stage(0, 3, {0}, 2), stage(4, 6, {1, 2, 3}, 2)}, microbatches, recompute));
    }
  return all;
}

/// What one microbatch of each number of rows leaves behind.
class Footprints {
 public:
  sg::Footprint const& operator()(std::size_t rows) {
    auto const found = known_.find(rows);
    if (found != known_.end()) return found->second;
    auto const batch = row_model::batch(0, 1, rows, false);
    return known_[rows] = sg::Profiler().footprint(one_, batch.inputs[0], batch.targets[0]);
  }

 private:
  decltype(sg::Pipeline{row_model::model()}.on_one_device(Loss{}, optimizer())) one_ =
      sg::Pipeline{row_model::model()}.on_one_device(Loss{}, optimizer());
  std::map<std::size_t, sg::Footprint> known_;
};

template <class Device> auto pipeline(sg::Planned const& run, Device device) {
  sg::Options options = run.options;
  options.seed = run_seed;
  return sg::Pipeline{row_model::model()}.with(run.cuts, run.schedule, options, Loss{}, optimizer(),
                                               device);
}

}  // namespace

TEST_CASE("train/planned: memory is predicted to the byte, replicated stages included", "[train]") {
  Footprints footprints;
  std::size_t number = 0;
  for (auto const& p : plans())
    for (bool const uneven : {false, true}) {
      CAPTURE(number, p.stages.size(), p.microbatches, p.recompute, uneven);
      sg::Planned const run = sg::planned(p);
      auto const data = row_model::batch(3, p.microbatches, 6, uneven);
      std::vector<std::size_t> rows;
      for (auto const& input : data.inputs) rows.push_back(input.extent(0));
      auto const table = run.schedule.table(
          {.ranks = static_cast<int>(p.stages.size()), .microbatches = run.microbatches});
      auto const program = sg::lay_out(
          table, {.recompute = run.options.recompute, .replicas = &run.options.replicas});
      sg::Memory const predicted = sg::predicted_memory(
          program, run.cuts.first_layers, sg::optimizer::AdamW::states, rows, footprints);
      auto train = pipeline(run, sg::host::Threads{1 + static_cast<int>(number++ % 3)});
      CHECK(train.ranks() == run.ranks());
      for (int step = 0; step < 2; ++step) (void)sg::run(train.step(data));
      check_same_memory(predicted, train.memory());
    }
}

TEST_CASE("train/planned: each position runs as many forwards ahead as the plan says", "[train]") {
  auto const p =
      plan_of({stage(0, 1, {7, 2}, 4), stage(2, 3, {0}, 3), stage(4, 6, {9}, 1)}, 6, true);
  sg::Planned const run = sg::planned(p, {.clip_norm = 2.0, .recompute = false});
  CHECK(run.cuts.first_layers == std::vector<int>{2, 4});
  CHECK(run.options.recompute);
  CHECK(run.options.clip_norm == 2.0);
  CHECK(run.options.replicas.counts().size() == 3);
  CHECK(run.options.replicas.counts()[0] == 2);
  CHECK(run.placement.places == std::vector<int>{2, 1, 0, 3});
  for (int const microbatches : {1, 3, 6, 40}) {
    auto const table = run.schedule.table({.ranks = 3, .microbatches = microbatches});
    CHECK_FALSE(sg::schedule::verify(table));
    for (int r = 0; r < 3; ++r) {
      int ahead = 0;
      while (table.row(r)[static_cast<std::size_t>(ahead)].kind == Kind::forward) ++ahead;
      CHECK(ahead == std::min(microbatches, p.stages[static_cast<std::size_t>(r)].warm_up));
    }
  }
  CHECK(sg::planned(plan_of({stage(0, 6, {0}, 1)}, 2, false)).options.replicas.empty());
}

TEST_CASE("train/planned: a plan that Auto makes runs, with the bits of loops over the rows",
          "[train]") {
  sg::cluster::Profile profile{.name = "rows", .batch = 2};
  for (int l = 0; l < 7; ++l)
    profile.layers.push_back({.forward_s = l == 1 ? 15e-3 : 1e-3,
                              .backward_s = l == 1 ? 25e-3 : 2e-3,
                              .activation_bytes = 1000,
                              .parameter_bytes = l <= 1 ? 100U : 900'000'000U});
  sg::cluster::Cluster cluster{.name = "", .devices = {}, .intra = {{1e-6, 1e9, {}}}, .inter = {}};
  cluster.devices.assign(3, {"a", 64'000'000'000, 1, 0});
  plan::Plan const p = plan::Auto{}.plan({profile, cluster, {.batch = 24, .microbatch = 2}});
  sg::Planned const run = sg::planned(p);
  REQUIRE(run.ranks() == 3);
  REQUIRE(p.stages.size() == 2);  // the slow layer on two devices, the heavy ones on one
  REQUIRE(p.stages[0].replicas() == 2);
  std::vector<Batch> data;
  for (int s = 0; s < 3; ++s) data.push_back(row_model::batch(s, run.microbatches, 4, true));
  row_model::Weights weights;
  for (auto const& s : p.stages) weights.emplace_back(s.devices.size(), std::size_t{1});
  auto const table = run.schedule.table({.ranks = 2, .microbatches = run.microbatches});
  auto const course = row_model::expected_course(
      data, false, orders_of(table, first_layers(run.cuts.first_layers)), weights);
  auto train = pipeline(run, sg::host::Threads{2});
  CHECK(first_difference(train, data, course) == -1);
}

TEST_CASE("train/planned: what cannot be run is refused", "[train]") {
  CHECK_THROWS_WITH(sg::planned({}), "a plan without stages cannot be run; plan first");
  CHECK_THROWS_WITH(sg::planned(plan_of({stage(0, 6, {}, 1)}, 1, false)),
                    "the stage of layers 0 to 6 has no device; give it one or more");
  CHECK_THROWS_WITH((sg::PlannedOrder{{2, 1}}.table({.ranks = 3, .microbatches = 2})),
                    "a plan of 2 stages cannot be run by 3 positions; cut the model as it says");
  CHECK_THROWS_WITH((sg::PlannedOrder{{1, 2}}.table({.ranks = 2, .microbatches = 2})),
                    "stage 1 of the plan runs 2 forwards before its first backward; let no count "
                    "be below 1 or rise");
  CHECK_THROWS_WITH((sg::PlannedOrder{{0}}.table({.ranks = 1, .microbatches = 2})),
                    Catch::Contains("stage 0 of the plan runs 0 forwards"));
  auto const program = sg::lay_out(sg::PlannedOrder{{1}}.table({.ranks = 1, .microbatches = 2}));
  std::vector<int> const cuts{3};
  std::vector<std::size_t> const rows{1, 1};
  sg::Footprint const nothing{};
  CHECK_THROWS_WITH(
      sg::predicted_memory(program, cuts, 0, rows,
                           [&](std::size_t) -> sg::Footprint const& { return nothing; }),
      Catch::Contains("1 cuts and 2 microbatches do not belong to a program of 1"));
}

TEST_CASE("train/planned: what only a forward has kept is counted as it is behind a forward",
          "[train]") {
  sg::Footprint footprint;
  footprint.layers.resize(2);
  footprint.layers[0].saved = 1000;
  footprint.layers[0].saved_forward = 10;
  std::vector<int> const cuts{1};
  std::vector<std::size_t> const rows(4, 1);
  auto const activations = [&](bool recompute) {
    sg::LayOutOptions options;
    options.recompute = recompute;
    auto const program = sg::lay_out(
        sg::schedule::table_of(sg::schedule::GPipe{}, {.ranks = 2, .microbatches = 4}), options);
    return sg::predicted_memory(program, cuts, 0, rows,
                                [&](std::size_t) -> sg::Footprint const& { return footprint; })
        .activations;
  };
  CHECK(activations(false) == 4 * 1000);
  CHECK(activations(true) == 10 + 1000);  // all forwards share a slot; a backward has its own
}

}  // namespace planned_test
