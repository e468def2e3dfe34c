// SPDX-License-Identifier: Apache-2.0
#include <stagger/mpi/processes.hpp>

#include <array>
#include <cstddef>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <stagger/collective/all_reduce.hpp>
#include <stagger/collective/grouping.hpp>
#include <stagger/engine/replicas.hpp>
#include <stagger/mpi/session.hpp>
#include <stagger/schedule/chimera.hpp>
#include <stagger/schedule/gpipe.hpp>
#include <stagger/schedule/interleaved.hpp>
#include <stagger/train/pipeline.hpp>

#include "catch.hpp"
#include "engine/row_oracle.hpp"
#include "trap_model.hpp"
#include "world.hpp"

namespace replica_sums_test {

// Gradients of replicas in several processes, added up while the last backward runs. Each assertion
// holds in every process.

using row_model::Weights;
using namespace small_model;
namespace collective = sg::collective;
namespace grouping = sg::collective::grouping;

namespace {

template <class G>
auto grouped(collective::AllReduce<G> policy, std::vector<int> cuts, Made schedule,
             sg::Options options) {
  options.seed = run_seed;
  return sg::Pipeline{row_model::model()}.with(sg::partition::Cuts{std::move(cuts)},
                                               std::move(schedule), Loss{}, optimizer(),
                                               sg::mpi::Processes{}, policy, options);
}

/// Groups of one layer in process 0, and one group in the others.
struct Unlike {
  using policy_tag = sg::GroupingTag;
  [[nodiscard]] std::vector<collective::LayerGroup> groups(collective::Backward const& backward,
                                                           collective::CostLine line) const {
    if (process() == 0) return grouping::Layerwise{}.groups(backward, line);
    return grouping::Single{}.groups(backward, line);
  }
};

/// What a grouping was asked with.
struct Seen {
  int times = 0;
  double backward_s = 0;  // of all layers
  collective::CostLine line{};
};

/// Groups of one layer; it remembers.
struct Witness {
  using policy_tag = sg::GroupingTag;
  static inline Seen seen;
  [[nodiscard]] std::vector<collective::LayerGroup> groups(collective::Backward const& backward,
                                                           collective::CostLine line) const {
    ++seen.times;
    seen.line = line;
    for (double const s : backward.backward_s) seen.backward_s += s;
    return grouping::Layerwise{}.groups(backward, line);
  }
};

struct Case {
  Made schedule;
  int positions;
  sg::Replicas replicas;
  Weights weights;
  std::size_t rows = 4;
};

}  // namespace

TEST_CASE("mpi/Processes: replicas have the bits of loops over the rows for every grouping",
          "[mpi]") {
  using namespace sg::schedule;
  std::vector<Case> const cases{{made(GPipe{}), 1, {4}, {{1, 1, 1, 1}}},
                                {made(OneFOneB{}), 2, {3, 1}, {{1, 1, 1}, {1}}},
                                {split(made(OneFOneB{}), 2), 2, {2, 3}, {{1, 1}, {1, 1, 1}}},
                                {made(OneFOneB{}), 2, {{15, 1}, {1, 1}}, {{15, 1}, {1, 1}}, 16},
                                {made(Interleaved{}), 2, {2, 2}, {{1, 1}, {1, 1}}},
                                {made(Chimera{}), 2, {2, 2}, {{1, 1}, {1, 1}}}};
  unsigned number = 0;
  for (Case const& one : cases) {
    auto const cuts = even_cuts(one.positions * one.schedule.each);
    auto const table = one.schedule.table(
        {.ranks = one.positions, .microbatches = 4, .chunks = one.schedule.each});
    for (bool const clips : {true, false}) {
      std::vector<Batch> data;
      for (int s = 0; s < (sanitized ? 4 : 6); ++s)
        data.push_back(row_model::batch(s, 4, one.rows, true));
      auto const course = row_model::expected_course(
          data, clips, orders_of(table, first_layers(cuts)), one.weights);
      auto const check = [&](auto policy) {
        sg::Options options;
        options.recompute = number % 2 == 0;
        options.record = number++ % 3 == 0;
        if (clips) options.clip_norm = clip;
        options.replicas = one.replicas;
        CAPTURE(number, one.positions, clips);
        auto train = grouped(policy, cuts, one.schedule, options);
        for (std::size_t s = 0; s < data.size(); ++s) {
          auto const metrics = sg::run(train.step(data[s]));
          REQUIRE(metrics.loss == course.loss[s]);
          REQUIRE(metrics.gradient_norm == course.norm[s]);
          train.gather_parameters();
          REQUIRE(bits(train) == course.bits[s]);
        }
      };
      check(collective::AllReduce<>{.measured_steps = 1, .renew_every = 2});
      check(collective::AllReduce<grouping::Layerwise>{});
      check(collective::AllReduce<grouping::Single>{});
      check(collective::AllReduce<grouping::Bucket>{.grouping = {100}});
    }
  }
}

TEST_CASE("mpi/Processes: what one process decides holds in all, and is renewed in all at a step",
          "[mpi]") {
  sg::Options options;
  options.replicas = {4};
  auto train = grouped(collective::AllReduce<Unlike>{.measured_steps = 2, .renew_every = 3}, {},
                       made(sg::schedule::GPipe{}), options);
  std::vector<std::size_t> groups;
  for (int s = 0; s < 10; ++s) {
    groups.push_back(train.program(2).groups.size());
    sg::run(train.step(row_model::batch(s, 2, 4, false)));
  }
  CHECK(groups == std::vector<std::size_t>(10, 6));  // those of process 0: a layer each
  if (processes() == 1) return;
  // Where nothing is measured nobody talks about it: that they differ is found before a step.
  auto unlike = grouped(collective::AllReduce<Unlike>{.measured_steps = 0}, {},
                        made(sg::schedule::GPipe{}), options);
  try {
    sg::run(unlike.step(row_model::batch(0, 2, 4, false)));
    FAIL("processes with different groups took a step together");
  } catch (sg::Error const& error) {
    CHECK(error.code() == sg::Errc::mismatch);
    CHECK_THAT(error.what(), Catch::StartsWith("ranks disagree on the groups of gradients"));
  }
}

TEST_CASE("mpi/Processes: one process is asked, with what the others measured", "[mpi]") {
  sg::Options options;
  options.replicas = {2, 2};
  Witness::seen = Seen{};
  auto train = grouped(collective::AllReduce<Witness>{.measured_steps = 2}, {4},
                       made(sg::schedule::OneFOneB{}), options);
  for (int s = 0; s < 4; ++s) sg::run(train.step(row_model::batch(s, 2, 4, false)));
  int const asked = process() == 0 ? 2 : 0;  // for each stage
  CHECK(Witness::seen.times == asked);
  if (asked == 0) return;
  CHECK(Witness::seen.backward_s > 0);
  CHECK(Witness::seen.line.per_byte_s > 0);
}

namespace {

/// A stage of one rank for each process, or of two, its layers one group each.
auto shared_stage() {
  sg::Options options;
  options.replicas = {std::max(2, processes())};
  options.deadline_s = 60;
  options.record = true;
  return trap_model::one_stage().with(sg::partition::Cuts{}, trap_model::RowSum{},
                                      sg::mpi::Processes{},
                                      collective::AllReduce<grouping::Layerwise>{}, options);
}

sg::Batch<trap_model::Numbers, trap_model::Numbers> rows(int microbatches) {
  sg::Batch<trap_model::Numbers, trap_model::Numbers> batch;
  for (int m = 0; m < microbatches; ++m) {
    batch.inputs.push_back({1, 2, 3, 4});
    batch.targets.push_back({4, 3, 2, 1});
  }
  return batch;
}

}  // namespace

TEST_CASE("mpi/Processes: gradients of a stage are added up before its last backward has ended",
          "[mpi]") {
  // The barriers let no process come far ahead of the others. Which messages have come when a
  // process looks is not for us to say: but that none ever comes in time would be a fault.
  constexpr std::size_t own_layers = 6;
  auto train = shared_stage();
  static MPI_Comm together;
  MPI_Comm_dup(MPI_COMM_WORLD, &together);
  bool early = false;
  for (int tries = 0; tries < 500 && !early; ++tries) {
    trap_model::trap = {1, 1, true, [] {
                          if (processes() > 1) MPI_Barrier(together);
                        }};
    sg::run(train.step(rows(2)));
    auto const reductions = train.reductions();
    auto const timeline = train.timeline();
    REQUIRE(reductions.ranks() == std::max(2, processes()));
    for (std::size_t r = 0; r < reductions.row_begin.size(); ++r) {
      auto const sums = reductions.row(r);
      auto const actions = timeline.row(r);
      REQUIRE(sums.size() == own_layers);
      REQUIRE(actions.back().action.kind == sg::schedule::Kind::backward);
      early = early || sums.front().end_s < actions.back().end_s;
    }
  }
  trap_model::trap = {};
  MPI_Comm_free(&together);
  CHECK(early);
}

TEST_CASE("mpi/Processes: trouble between the sums of a stage leaves parameters as they were",
          "[mpi]") {
  auto train = shared_stage();
  auto undisturbed = shared_stage();
  auto const data = rows(2);
  auto const values = [](auto& trainer) {
    trainer.gather_parameters();
    return bits(trainer);
  };
  for (int const layer : {0, 2}) {
    auto const before = values(train);
    if (process() == processes() - 1)
      trap_model::trap = {layer, 1, true, [] { throw std::runtime_error("no such word"); }};
    CHECK_THROWS_WITH(sg::run(train.step(data)), Catch::EndsWith("no such word"));
    trap_model::trap = {};
    CHECK(values(train) == before);
    sg::run(train.step(data));
    sg::run(undisturbed.step(data));
    CHECK(values(train) == values(undisturbed));
  }
}

}  // namespace replica_sums_test
