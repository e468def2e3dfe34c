// SPDX-License-Identifier: Apache-2.0
// worker_faults WHAT: three workers in a process each train through a parameter server whose layers
// lie in all of them, or with "apart" in WHAT two workers through one in process 2. Process 1 is
// killed in a stream. The other workers print what ended theirs, and how long that took.

#include <signal.h>

#include <chrono>
#include <cstdio>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include <stagger/host/threads.hpp>
#include <stagger/mpi/parameter_server.hpp>
#include <stagger/mpi/session.hpp>
#include <stagger/partition/cuts.hpp>
#include <stagger/schedule/fifo.hpp>
#include <stagger/staleness/wave_synchronous.hpp>
#include <stagger/train/pipeline.hpp>

#include "unit/train/server_oracle.hpp"

namespace {

using namespace plain_layers;

struct Fatal : Layer {
  using Layer::Layer;
  bool dies = false;
  void forward(sg::Context& context, Input const& x, Output& y, Saved& saved) {
    if (dies && context.microbatch() == 7) static_cast<void>(raise(SIGKILL));
    Layer::forward(context, x, y, saved);
  }
};

int run(bool apart) {
  sg::mpi::Session const session(sg::mpi::Threads::multiple);
  int process = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &process);
  std::vector<int> layer_processes;
  if (apart) layer_processes.assign(layers, 2);
  sg::mpi::ParameterServer const server(
      {.workers = apart ? 2 : 3, .layer_processes = layer_processes, .deadline_s = 2});
  auto const start = std::chrono::steady_clock::now();
  auto const report = [&](char const* words) {
    std::chrono::duration<double> const took = std::chrono::steady_clock::now() - start;
    bool const in_time = took.count() < 5;
    std::printf("FAULT rank %d after %.1f s, no partial update: %s%s\n", process, took.count(),
                in_time ? "" : "too late: ", words);
    std::fflush(stdout);
  };
  if (!apart || process != 2) {
    std::vector<Fatal> stack;
    for (int l = 0; l < layers; ++l) stack.emplace_back(l);
    stack.back().dies = process == 1;
    auto train = sg::Pipeline{sg::Sequential{std::move(stack)}}.with(
        sg::partition::Cuts{{2}}, sg::schedule::Fifo{.in_flight = 2},
        sg::staleness::WaveSynchronous{
            .in_flight = 2, .distance = 0, .adds = sg::staleness::Adds::in_worker_order},
        server.worker(process), Loss{}, sg::optimizer::Sgd{.rate = 0.01}, sg::host::Threads{2},
        sg::Options{.deadline_s = 60});
    auto const batch = data(20, process);
    try {
      static_cast<void>(sg::run(train.stream(batch)));
      std::printf("rank %d saw no fault\n", process);
    } catch (std::exception const& error) {
      report(error.what());
    }
  }
  server.serve();
  if (apart && process == 2) report("its workers have gone");
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return run(argc > 1 && std::string(argv[1]) == "apart"); }
