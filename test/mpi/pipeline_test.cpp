// SPDX-License-Identifier: Apache-2.0
#include <stagger/mpi/processes.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include <stagger/engine/replicas.hpp>
#include <stagger/host/threads.hpp>
#include <stagger/mpi/session.hpp>
#include <stagger/schedule/chimera.hpp>
#include <stagger/schedule/dual_pipe.hpp>
#include <stagger/schedule/gpipe.hpp>
#include <stagger/schedule/interleaved.hpp>
#include <stagger/schedule/pipe_dream.hpp>
#include <stagger/schedule/zero_bubble_v.hpp>
#include <stagger/staleness/weight_stashing.hpp>
#include <stagger/train/pipeline.hpp>

#include "catch.hpp"
#include "engine/row_oracle.hpp"
#include "engine/small_model.hpp"
#include "same_steps.hpp"
#include "world.hpp"

namespace pipeline_test {

// Runs on as many processes as mpirun starts. Each assertion holds in every process.

using namespace small_model;

namespace {

constexpr sg::optimizer::AdamW adam{.rate = 0.02};

template <class Device>
auto trained_on(Device device, Made schedule, int stages, sg::Options options = {}) {
  return sg::Pipeline{model()}.with(sg::partition::Even{stages}, std::move(schedule), adam, Loss{},
                                    std::move(device), std::move(options));
}

template <class A, class B> void require_same_outputs(A& there, B& here, Batch const& data) {
  std::vector<Matrix> a(data.inputs.size());
  std::vector<Matrix> b(data.inputs.size());
  sg::run(there.predict(data.inputs, a));
  sg::run(here.predict(data.inputs, b));
  for (std::size_t m = 0; m < a.size(); ++m)
    REQUIRE(std::vector(a[m].begin(), a[m].end()) == std::vector(b[m].begin(), b[m].end()));
}

/// Steps, evaluations and predictions over processes and in one must not differ in a bit. The last
/// ones are of a microbatch alone, and of a number that the schedule may refuse to train with.
void require_same(Made const& schedule, int stages, int microbatches, sg::Options const& options) {
  CAPTURE(stages, microbatches);
  auto there = trained_on(sg::mpi::Processes{}, schedule, stages, options);
  auto here = trained_on(sg::host::Threads{1}, schedule, stages, options);
  REQUIRE(there.ranks() == here.ranks());
  for (int step = 0; step < 3; ++step) {
    Batch const data = batch(step, microbatches, true);
    require_same_steps(there, here, data);
    double const held_out = sg::run(there.evaluate(data)).loss;
    REQUIRE(held_out == sg::run(here.evaluate(data)).loss);
  }
  for (int const few : {1, microbatches - 1, microbatches}) {
    Batch const data = batch(9, few, true);
    double const held_out = sg::run(there.evaluate(data)).loss;
    REQUIRE(held_out == sg::run(here.evaluate(data)).loss);
    require_same_outputs(there, here, data);
  }
  there.gather_parameters();
  REQUIRE(bits(there) == bits(here));
  if (!options.record) return;
  auto const over_processes = there.timeline();
  auto const alone = here.timeline();
  for (int r = 0; r < over_processes.ranks(); ++r)
    REQUIRE(over_processes.row(r).size() == alone.row(r).size());
}

}  // namespace

TEST_CASE("mpi/Processes: a pipeline over processes has the bits of one process", "[mpi]") {
  using namespace sg::schedule;
  int const n = processes();
  sg::Options options;
  for (int const clipped : {0, 1}) {
    if (clipped != 0) options.clip_norm = 0.1;
    options.recompute = options.record = clipped != 0;
    require_same(made(GPipe{}), n, 5, options);
    require_same(made(OneFOneB{}), n, 6, options);
    require_same(split(made(OneFOneB{}), 2), n, 6, options);
    if (n > 3) continue;  // seven layers
    require_same(made(Interleaved{}), 2 * n, 2 * n, options);
    require_same(made(ZeroBubbleV{}), 2 * n, 2 * n + 1, options);
  }
}

TEST_CASE("mpi/Processes: a process may run several ranks", "[mpi]") {
  using namespace sg::schedule;
  sg::Options options;
  options.clip_norm = 0.1;
  require_same(made(GPipe{}), 7, 4, options);
  require_same(made(OneFOneB{}), 5, 7, options);
  options.spare_slots = 0;
  require_same(made(OneFOneB{}), 6, 7, options);
}

TEST_CASE("mpi/Processes: several owners of a stage update alike, wherever they are", "[mpi]") {
  using namespace sg::schedule;
  sg::Options options;
  options.clip_norm = 0.1;
  for (int const stages : {2, 4}) {
    if (stages < processes()) continue;
    require_same(made(DualPipe{}), stages, 2 * stages, options);
    require_same(made(Chimera{}), stages, 2 * stages, options);
  }
}

TEST_CASE("mpi/Processes: replicas have the bits of one process", "[mpi]") {
  using namespace sg::schedule;
  int const n = processes();
  for (auto const& counts : {std::vector{1, 2}, std::vector{2, 2}, std::vector{3, 1},
                             std::vector{2, 1, 3}, std::vector{1, 4}}) {
    int ranks = 0;
    for (int const count : counts) ranks += count;
    if (ranks < n) continue;
    auto const positions = static_cast<int>(counts.size());
    std::vector<int> cuts;
    for (int s = 1; s < positions; ++s) cuts.push_back(7 * s / positions);
    sg::Options options;
    options.clip_norm = 0.1;
    options.replicas = sg::Replicas::even(counts.data(), counts.size());
    for (Made const& schedule : {made(GPipe{}), made(OneFOneB{})}) {
      auto there = row_model::pipeline(sg::mpi::Processes{}, cuts, schedule, options);
      auto here = row_model::pipeline(sg::host::Threads{1}, cuts, schedule, options);
      for (int step = 0; step < 3; ++step)
        require_same_steps(there, here, row_model::batch(step, 4, 4, true));
      auto const data = row_model::batch(5, 3, 4, true);
      double const held_out = sg::run(there.evaluate(data)).loss;
      REQUIRE(held_out == sg::run(here.evaluate(data)).loss);
      require_same_outputs(there, here, data);
      there.gather_parameters();
      REQUIRE(bits(there) == bits(here));
    }
  }
}

TEST_CASE("mpi/Processes: a stream without a flush has the bits of one process", "[mpi]") {
  auto const make = [](auto device) {
    return sg::Pipeline{model()}.with(sg::partition::Even{processes()}, sg::schedule::PipeDream{},
                                      sg::staleness::WeightStashing{}, adam, Loss{}, device);
  };
  auto there = make(sg::mpi::Processes{});
  auto here = make(sg::host::Threads{1});
  for (int round = 0; round < 2; ++round) {
    Batch const data = batch(round, 9, false);
    sg::Metrics const a = sg::run(there.stream(data));
    REQUIRE(a.loss == sg::run(here.stream(data)).loss);
    REQUIRE(there.steps() == here.steps());
  }
  there.gather_parameters();
  REQUIRE(bits(there) == bits(here));
}

TEST_CASE("mpi/Processes: a process has memory for the stages that it runs, and no others",
          "[mpi]") {
  sg::Options options;
  options.clip_norm = 0.1;
  int const n = processes();
  auto there = trained_on(sg::mpi::Processes{}, made(sg::schedule::OneFOneB{}), n, options);
  auto here = trained_on(sg::host::Threads{1}, made(sg::schedule::OneFOneB{}), n, options);
  int here_is = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &here_is);
  auto const whole = here.memory().parameters;
  for (int step = 0; step < 3; ++step) {
    require_same_steps(there, here, batch(step, 4, true));
    std::uint64_t const own = there.memory().parameters;
    std::uint64_t all = 0;
    MPI_Allreduce(&own, &all, 1, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
    REQUIRE(all == whole);
    if (step == 1) there.gather_parameters(n - 1);
    if (step == 1 && here_is == n - 1) REQUIRE(bits(there) == bits(here));
    REQUIRE((there.memory().parameters == whole) == (n == 1 || (step == 1 && here_is == n - 1)));
  }
  there.gather_parameters();
  REQUIRE(there.memory().parameters == whole);
  REQUIRE(bits(there) == bits(here));
  REQUIRE_THROWS_AS(there.gather_parameters(n), sg::Error);
}

TEST_CASE("mpi/Processes: stages that another program puts elsewhere take their parameters along",
          "[mpi]") {
  Made const moving{[](sg::Shape shape) {
    Table const table = sg::schedule::GPipe{}.table(shape);
    if (shape.microbatches % 2 == 0) return table;
    Table turned;
    turned.stages = table.stages;
    turned.microbatches = table.microbatches;
    for (int r = table.ranks() - 1; r >= 0; --r) {
      turned.begin_row();
      for (auto const& action : table.row(r)) turned.add(action);
    }
    return turned;
  }};
  auto there = trained_on(sg::mpi::Processes{}, moving, processes());
  auto here = trained_on(sg::host::Threads{1}, moving, processes());
  for (int const microbatches : {4, 3, 3, 2, 4, 1})
    require_same_steps(there, here, batch(microbatches, microbatches, true));
  there.gather_parameters();
  REQUIRE(bits(there) == bits(here));
}

}  // namespace pipeline_test
