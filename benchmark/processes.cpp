// SPDX-License-Identifier: Apache-2.0
// The transformer of examples/gpt with a process for each rank, compared with the same ranks on
// threads of one process; and groups of processes that share layers.
//
// The program starts itself under mpirun, with two stages in 2 processes, and with two replicas of
// each stage in 4 processes. Rounds alternate: a few steps of all processes, then as many of
// process 0 alone, on as many threads as there are ranks and cores, while the others sleep. Figures
// are medians over the rounds of a run, and the median of five runs is reported.
//
// With four processes, it also measures the gain from overlapping all-reduces with the last
// backward pass: the groups of `grouping::Optimal` against `grouping::Single`, whose only group
// contains the whole stage and so has to wait for the end of the backward pass.
//
// Two processes also train examples/vgg, as one group that shares the dense layers and as two
// replicas; steps of both alternate.

#include <mpi.h>

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <stagger/collective/all_reduce.hpp>
#include <stagger/collective/grouping/single.hpp>
#include <stagger/engine/replicas.hpp>
#include <stagger/mpi/processes.hpp>
#include <stagger/mpi/session.hpp>

#include "support/rows.hpp"
#include "support/transformer.hpp"
#include "support/vgg.hpp"

namespace {

constexpr std::size_t microbatches = 8;
constexpr int rounds = 5;
constexpr int steps = 3;
constexpr double longest_wait_s = 600;

template <class Device, class Sums = stagger::collective::AllReduce<>>
auto made(Device device, int replicas, Sums sums = {}) {
  stagger::Options options;
  options.clip_norm = bench::transformer.clip;
  options.deadline_s = longest_wait_s;
  if (replicas > 1) options.replicas = {replicas, replicas};
  return bench::transformer_pipeline().with(
      layers::ByWork{gpt::work_of(bench::transformer_shape()), 2}, stagger::schedule::OneFOneB{},
      stagger::optimizer::AdamW{}, gpt::CrossEntropy<float>{}, std::move(device), sums, options);
}

/// A barrier that does not use a core while it waits.
void barrier() {
  MPI_Request come = MPI_REQUEST_NULL;
  MPI_Ibarrier(MPI_COMM_WORLD, &come);
  for (int all_here = 0; all_here == 0;) {
    std::this_thread::sleep_for(std::chrono::microseconds(200));
    MPI_Test(&come, &all_here, MPI_STATUS_IGNORE);
  }
}

/// Step times of four processes with the two groupings.
int measure_sums() {
  namespace collective = stagger::collective;
  stagger::mpi::Session const session;
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  auto const batch = bench::transformer_batch(microbatches);
  auto overlapped =
      made(stagger::mpi::Processes{}, 2, collective::AllReduce<>{.measured_steps = 2});
  auto after =
      made(stagger::mpi::Processes{}, 2, collective::AllReduce<collective::grouping::Single>{});
  std::vector<double> overlapped_s;
  std::vector<double> after_s;
  for (int round = -1; round < rounds; ++round) {
    double loss[2] = {};
    auto const take = [&](auto& train, double& last, std::vector<double>& times) {
      barrier();
      double const start_s = bench::now_s();
      for (int i = 0; i < steps; ++i) last = stagger::run(train.step(batch)).loss;
      if (round >= 0) times.push_back((bench::now_s() - start_s) / steps);
    };
    take(overlapped, loss[0], overlapped_s);
    take(after, loss[1], after_s);
    if (loss[0] != loss[1]) return 1;
  }
  if (rank == 0)
    std::printf("MEASURED %.9f %.9f\n", bench::median(overlapped_s), bench::median(after_s));
  std::fflush(stdout);
  return 0;
}

/// Steps of examples/vgg by two processes, as a group and as replicas.
int measure_groups(std::ptrdiff_t width) {
  stagger::mpi::Session const session;
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  auto const shape = bench::vgg_shape(width);
  auto const batch = bench::vgg_batch(shape);
  auto shared = bench::vgg_pipeline(shape, 2, stagger::mpi::Processes{});
  auto copies = bench::vgg_pipeline(shape, 1, stagger::mpi::Processes{});
  auto const timed = [&](auto& train) {
    MPI_Barrier(MPI_COMM_WORLD);
    double const start_s = bench::now_s();
    stagger::run(train.step(batch));
    return bench::now_s() - start_s;
  };
  std::vector<double> shared_s;
  std::vector<double> copies_s;
  for (int round = -3; round < 11; ++round) {
    double const of_shared = timed(shared);
    double const of_copies = timed(copies);
    if (round < 0) continue;
    shared_s.push_back(of_shared);
    copies_s.push_back(of_copies);
  }
  shared.record(true);
  std::vector<double> shares;
  for (int round = 0; round < 5; ++round) {
    timed(shared);
    shares.push_back(bench::exchanging(shared.timeline()));
  }
  if (rank == 0)
    std::printf("MEASURED %.9f %.9f %.9f\n", bench::median(shared_s), bench::median(copies_s),
                bench::median(shares));
  std::fflush(stdout);
  return 0;
}

int measure() {
  stagger::mpi::Session const session;
  int n = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &n);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  int const replicas = n / 2;
  int const cores = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  auto const batch = bench::transformer_batch(microbatches);
  auto there = made(stagger::mpi::Processes{}, replicas);
  auto here = made(stagger::host::Threads{std::min(n, cores)}, replicas);
  std::vector<double> processes_s;
  std::vector<double> threads_s;
  for (int round = -1; round < rounds; ++round) {
    double loss[2] = {};
    barrier();
    double start_s = bench::now_s();
    for (int i = 0; i < steps; ++i) loss[0] = stagger::run(there.step(batch)).loss;
    double const together_s = (bench::now_s() - start_s) / steps;
    barrier();
    if (rank == 0) {
      start_s = bench::now_s();
      for (int i = 0; i < steps; ++i) loss[1] = stagger::run(here.step(batch)).loss;
      if (loss[0] != loss[1]) return 1;
      if (round >= 0) processes_s.push_back(together_s);  // the first round allocates
      if (round >= 0) threads_s.push_back((bench::now_s() - start_s) / steps);
    }
    barrier();  // the others sleep here
  }
  if (rank == 0)
    std::printf("MEASURED %.9f %.9f\n", bench::median(processes_s), bench::median(threads_s));
  std::fflush(stdout);
  return 0;
}

/// Runs this program under mpirun.
/// @param what    --ranks, --sums or --groups=<width>
/// @param second  name of the second number that it reports
void run_processes(benchmark::State& state, std::string const& self, int n,
                   char const* what = "--ranks", char const* second = "threads_ms") {
  for ([[maybe_unused]] auto _ : state) {
    std::string const command =
        bench::text("%s -n %d '%s' %s 2>&1", BENCH_MPIRUN, n, self.c_str(), what);
    std::FILE* const out = popen(command.c_str(), "r");
    char line[256];
    bool measured = false;
    while (out != nullptr && std::fgets(line, sizeof(line), out) != nullptr) {
      double processes_s = 0;
      double threads_s = 0;
      double exchanging = 0;
      if (std::sscanf(line, "MEASURED %lf %lf %lf", &processes_s, &threads_s, &exchanging) < 2)
        continue;
      measured = true;
      state.counters["exchanging"] = exchanging;
      state.counters["of_replicas"] = threads_s / processes_s;
      state.SetIterationTime(processes_s);
      state.counters[second] = threads_s * 1e3;
      state.counters["slower"] = processes_s / threads_s - 1;
    }
    if (out != nullptr) pclose(out);
    if (!measured) state.SkipWithError("mpirun did not run the processes, or losses differed");
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], "--ranks") == 0) return measure();
  if (argc == 2 && std::strcmp(argv[1], "--sums") == 0) return measure_sums();
  int width = 0;
  if (argc == 2 && std::sscanf(argv[1], "--groups=%d", &width) == 1) return measure_groups(width);
  std::vector<bench::Row> rows;
  for (auto const& [n, most] : {std::pair{2, 0.05}, std::pair{4, 0.15}}) {
    std::string const name = bench::text("gpt/%d_processes", n);
    std::string const self = argv[0];
    int const processes = n;
    double const bound = most;
    bench::add(name, 5, [self, processes](benchmark::State& state) {
      run_processes(state, self, processes);
    })->Unit(benchmark::kMillisecond);
    rows.push_back(
        {bench::text("examples/gpt, 2 stages x %d, %d processes over MPI against as many ranks on "
                     "threads",
                     n / 2, n),
         name, [name, bound](bench::Results const& results) {
           double const slower = results.counter(name, "slower");
           return bench::Line{
               bench::text("%.1f ms, threads %.1f ms: %+.1f %%", 1e3 * results.time_s(name),
                           results.counter(name, "threads_ms"), 100 * slower),
               bench::text("at most %.0f %% longer", 100 * bound),
               slower <= bound ? bench::Grade::passed : bench::Grade::failed};
         }});
  }
  std::string const self = argv[0];
  bench::add("gpt/sums_4_processes", 5, [self](benchmark::State& state) {
    run_processes(state, self, 4, "--sums", "after_ms");
  })->Unit(benchmark::kMillisecond);
  rows.push_back(
      {"examples/gpt, 2 stages x 2, 4 processes over MPI: gradients added up while the last "
       "backward runs against after it",
       "gpt/sums_4_processes", [](bench::Results const& results) {
         char const* const name = "gpt/sums_4_processes";
         double const slower = results.counter(name, "slower");
         return bench::Line{
             bench::text("%.1f ms, after it %.1f ms: %+.1f %%", 1e3 * results.time_s(name),
                         results.counter(name, "after_ms"), 100 * slower),
             "at most 2 % longer", slower <= 0.02 ? bench::Grade::passed : bench::Grade::failed};
       }});
  for (int const of : {8, 64}) {
    std::string const name = bench::text("vgg/width:%d", of);
    bench::add(name, 3, [self, of](benchmark::State& state) {
      std::string const what = bench::text("--groups=%d", of);
      run_processes(state, self, 2, what.c_str(), "replicas_ms");
    })->Unit(benchmark::kMillisecond);
    rows.push_back(bench::vgg_row(bench::text("examples/vgg of width %d, 2 processes over MPI", of),
                                  name, 0.80));
  }
  return bench::run(argc, argv, rows);
}
