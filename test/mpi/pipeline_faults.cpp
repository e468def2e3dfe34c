// SPDX-License-Identifier: Apache-2.0
// pipeline_faults WHAT: process 1 of several dies or hangs in a backward of a pipeline that spans
// them; every other one prints the error it got and how long it waited, and whether its parameters
// are those of the last whole step.

#include <signal.h>

#include <chrono>
#include <cstdio>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <stagger/host/threads.hpp>
#include <stagger/mpi/processes.hpp>
#include <stagger/mpi/session.hpp>

#include "trap_model.hpp"

namespace {

using namespace trap_model;

constexpr double deadline_s = 2;

void (*fault(std::string const& what))() {
  if (what == "kill") return [] { static_cast<void>(raise(SIGKILL)); };
  if (what == "hang") return [] { std::this_thread::sleep_for(std::chrono::seconds(6)); };
  return [] { throw sg::Error(sg::Errc::bad_data, "a value is not finite"); };
}

int run(std::string const& what) {
  sg::mpi::Session const session;
  int process = 0;
  int processes = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &process);
  MPI_Comm_size(MPI_COMM_WORLD, &processes);
  auto const made = [&](auto device) {
    std::vector<Scale> layers;
    for (int l = 0; l < processes; ++l) layers.push_back(Scale{.layer = l});
    return sg::Pipeline{std::move(layers)}.with(Sum{}, device,
                                                sg::Options{.deadline_s = deadline_s});
  };
  auto train = made(sg::mpi::Processes{});
  auto alone = made(sg::host::Threads{1});
  sg::Batch<Numbers, float> const batch{{{1}, {2}, {3}, {4}}, {1, 2, 3, 4}};
  auto const own = static_cast<std::size_t>(process);
  for (int step = 0; step < 10; ++step) {
    if (step == 5 && process == 1)
      trap = {.layer = 1, .microbatch = 2, .backward = true, .spring = fault(what)};
    auto const start = std::chrono::steady_clock::now();
    try {
      sg::run(train.step(batch));
    } catch (sg::Error const& e) {
      std::chrono::duration<double> const waited = std::chrono::steady_clock::now() - start;
      bool const whole = train.parameters()[own].values<float>()[0] ==
                             alone.parameters()[own].values<float>()[0] &&
                         train.steps() == 5;
      std::printf("FAULT rank %d after %.1f s, %s update: %s\n", process, waited.count(),
                  whole ? "no partial" : "A PARTIAL", e.what());
      std::fflush(stdout);
      return 0;
    }
    sg::run(alone.step(batch));
  }
  std::printf("rank %d saw no fault\n", process);
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  return run(argc > 1 ? argv[1] : "");
}
