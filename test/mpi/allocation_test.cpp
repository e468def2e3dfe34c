// SPDX-License-Identifier: Apache-2.0
#include <stagger/mpi/processes.hpp>

#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <stagger/collective/all_reduce.hpp>
#include <stagger/collective/grouping/layerwise.hpp>
#include <stagger/engine/replicas.hpp>
#include <stagger/host/threads.hpp>
#include <stagger/schedule/chimera.hpp>
#include <stagger/schedule/gpipe.hpp>
#include <stagger/train/checkpoint.hpp>
#include <stagger/train/pipeline.hpp>

#include "catch.hpp"
#include "count_new.hpp"
#include "engine/row_oracle.hpp"
#include "engine/split_model.hpp"
#include "trap_model.hpp"

namespace allocation_test {

using namespace small_model;

#ifndef TEST_SANITIZED

TEST_CASE("mpi/Processes: later steps allocate nothing, whatever arrives when", "[mpi]") {
  using namespace sg::schedule;
  namespace collective = sg::collective;
  auto const count = [](Made const& schedule, int positions, sg::Replicas const& replicas,
                        bool clips) {
    sg::Options options;
    options.deadline_s = 600;  // processes that wait for long tell each other so
    options.replicas = replicas;
    if (clips) options.clip_norm = 0.1;
    auto train = sg::Pipeline{row_model::model()}.with(
        sg::partition::Even{positions * schedule.each}, schedule, Loss{}, sg::optimizer::AdamW{},
        sg::mpi::Processes{}, collective::AllReduce<collective::grouping::Layerwise>{}, options);
    auto const data = row_model::batch(0, 4, 4, true);
    for (int step = 0; step < 3; ++step) sg::run(train.step(data));
    CHECK(allocations_of([&] {
            for (int step = 0; step < 25; ++step) sg::run(train.step(data));
          }) == 0);
  };
  for (bool const clips : {false, true}) {
    count(made(OneFOneB{}), 4, {}, clips);
    count(made(GPipe{}), 4, {}, clips);
    count(made(OneFOneB{}), 2, {2, 2}, clips);
    count(made(GPipe{}), 2, {3, 1}, clips);
    count(made(Chimera{}), 4, {}, clips);
  }
}

TEST_CASE("mpi/groups: later steps of members that share layers allocate nothing", "[mpi]") {
  for (int const members : {2, 4})
    for (bool const pairs : {false, true}) {
      split_model::Case of{.members = members, .groups = 4 / members, .pairs = pairs};
      of.options.deadline_s = 600;
      auto train = split_model::pipeline<float>(
          sg::mpi::Processes{}, of,
          sg::collective::AllReduce<sg::collective::grouping::Layerwise>{});
      auto const data = split_model::batch<float>(0, 2, 17);
      for (int step = 0; step < 3; ++step) sg::run(train.step(data));
      allocations = 0;
      counting = true;
      for (int step = 0; step < 25; ++step) sg::run(train.step(data));
      counting = false;
      CHECK(allocations == 0);
    }
}

namespace {

constexpr std::size_t many = std::size_t{1} << 16U;  // numbers of a layer

void draw(std::span<float> values, std::uint64_t seed, double scale) {
  for (float& value : values) {
    seed = seed * 6364136223846793005U + 1442695040888963407U;
    value = static_cast<float>(scale * static_cast<double>(seed >> 40U) * 0x1p-24);
  }
}
std::vector<float> drawn(std::uint64_t seed) {
  std::vector<float> values(many);
  draw(values, seed, 0.5);
  return values;
}

/// A layer with many numbers, which are made where there is a place for them or by the program.
struct Heavy {
  using Input = trap_model::Numbers;
  using Output = trap_model::Numbers;
  sg::Parameter<> factors{};
  Heavy(std::uint64_t seed, bool made_here)
      : factors(made_here ? sg::Parameter<>{"factors", drawn(seed)}
                          : sg::Parameter<>{"factors", many, &draw, seed, 0.5}) {}
  auto parameters() { return std::tie(factors); }
  void forward(sg::Context& context, Input const& x, Output& y, sg::NothingSaved&) {
    y = x;
    for (std::size_t i = 0; i < y.size(); ++i) y[i] *= context[factors][i * 977];
  }
  void backward(sg::Context& context, Input const& x, Output const& dy, Input& dx,
                sg::NothingSaved&) {
    dx = dy;
    for (std::size_t i = 0; i < x.size(); ++i) {
      context.gradient(factors)[i * 977] += x[i] * dy[i];
      dx[i] *= context[factors][i * 977];
    }
  }
};

template <class Device>
auto heavy(Device device, bool made_here, int positions, sg::Replicas const& replicas,
           bool shards) {
  std::vector<Heavy> layers;
  for (std::uint64_t l = 0; l < 8; ++l) layers.emplace_back(l + 1, made_here);
  sg::Options options;
  options.replicas = replicas;
  return sg::Pipeline{sg::Sequential{std::move(layers)}}.with(
      sg::partition::Even{positions}, trap_model::RowSum{}, sg::optimizer::AdamW{}, device, options,
      sg::collective::AllReduce<sg::collective::grouping::Layerwise>{.shard_optimizer = shards});
}

std::string contents(std::string const& path) {
  std::string all(std::filesystem::file_size(path), ' ');
  std::ifstream(path, std::ios::binary).read(all.data(), static_cast<std::streamsize>(all.size()));
  return all;
}

}  // namespace

TEST_CASE("mpi/Processes: values that are made in place are never those of other stages", "[mpi]") {
  int processes = 0;
  int process = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &processes);
  MPI_Comm_rank(MPI_COMM_WORLD, &process);
  using trap_model::Numbers;
  sg::Batch<Numbers, Numbers> const batch{{{1, 2}, {3, 4}}, {{1, 2}, {3, 4}}};
  int name = static_cast<int>(getpid());
  MPI_Bcast(&name, 1, MPI_INT, 0, MPI_COMM_WORLD);
  auto const temporary =
      std::filesystem::temp_directory_path() / ("stagger-mpi-" + std::to_string(name));
  for (auto const& [replicated, shards] :
       {std::pair{false, false}, std::pair{true, false}, std::pair{true, true}}) {
    CAPTURE(replicated, shards);
    int const positions = replicated ? 2 : 4;
    sg::Replicas const replicas = replicated ? sg::Replicas{2, 2} : sg::Replicas{};
    std::size_t const before = peak = in_use.load();
    auto train = heavy(sg::mpi::Processes{}, false, positions, replicas, shards);
    for (int step = 0; step < 2; ++step) sg::run(train.step(batch));
    std::size_t const most = peak - before;
    // Of the layers of its own ranks: values, gradients and two states; less than one layer more.
    int stages = 0;
    for (int rank = 0, stage = -1; rank < 4; ++rank) {
      int const of = replicated ? rank / 2 : rank;
      if (rank * processes / 4 != process || of == stage) continue;
      stage = of;
      ++stages;
    }
    auto const held = static_cast<std::size_t>(stages * 8 / positions);
    std::size_t const bytes = many * sizeof(float);
    if (!replicated && !shards) CHECK(most < held * 4 * bytes + bytes);
    // Replicas: gradients of each, and those on their way.
    if (replicated && !shards) CHECK(most < held * 4 * bytes + 8 / 2 * 4 * bytes);
    auto alone = heavy(sg::host::Threads{1}, true, positions, replicas, false);
    for (int step = 0; step < 2; ++step) sg::run(alone.step(batch));

    // A checkpoint: one parameter after the other, and the file that one process would write.
    sg::Checkpoints const checkpoints((temporary / "processes").string());
    sg::CheckpointState const state{2, 1, "heavy", ""};
    for (int const nowhere : {-1, 1000})
      CHECK_THROWS_WITH(train.each_parameter(nowhere, [](sg::ParameterState const&) {}),
                        Catch::Contains("parameters cannot be gathered in process"));
    CHECK_THROWS_WITH(train.gather_parameters(-2),
                      Catch::Contains("cannot be gathered in process -2"));
    peak = in_use.load();
    std::size_t const idle = in_use;
    checkpoints.write(state, train);
    CHECK(peak - idle < 5 * bytes);
    MPI_Barrier(MPI_COMM_WORLD);
    if (process == 0) {
      sg::Checkpoints const plain((temporary / "alone").string());
      plain.write(state, alone);
      bool const same = contents(plain.path(2)) == contents(checkpoints.path(2));
      CHECK(same);
    }
    auto again = heavy(sg::mpi::Processes{}, false, positions, replicas, shards);
    again.prepare(2);
    peak = in_use.load();
    std::size_t const prepared = in_use;
    static_cast<void>(checkpoints.restore("heavy", again));
    if (!shards) CHECK(peak - prepared < 2 * bytes);
    CHECK(again.steps() == state.step);
    sg::run(again.step(batch));
    MPI_Barrier(MPI_COMM_WORLD);
    if (process == 0) std::filesystem::remove_all(temporary);

    train.gather_parameters();
    CHECK(bits(train) == bits(alone));
    sg::run(alone.step(batch));
    again.gather_parameters();
    CHECK(bits(again) == bits(alone));
    MPI_Barrier(MPI_COMM_WORLD);
  }
}

#endif

}  // namespace allocation_test
