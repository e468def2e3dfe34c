// SPDX-License-Identifier: Apache-2.0
// faults WHAT: rank 1 of several dies or hangs in an iteration; every other rank prints the error
// it got and how long it waited, and leaves with code 0 when the error is as promised. With "late"
// rank 0 alone sees an error, and all live to the end of main: the job ends with code 0.

#include <signal.h>

#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include <stagger/collective/handshake.hpp>
#include <stagger/mpi/session.hpp>
#include <stagger/mpi/world.hpp>

#include "meeting.hpp"

using namespace stagger;

namespace {

constexpr double deadline_s = 2;

int run(std::string const& what) {
  mpi::Session const session;
  int size = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  auto own = mpi::World{}.connect(size);
  auto& c = own.front();
  if (what == "late") {
    if (c.rank() != 0) return 0;
    try {
      c.barrier().wait(0.1);
    } catch (Error const&) {
      return 0;
    }
    return 1;
  }
  Meeting const meeting;
  collective::agree(c, std::vector{collective::library_fact()}, 10);

  std::vector<float> weights(100000, 1);
  std::vector<float> gradients(weights.size());
  auto const start = std::chrono::steady_clock::now();
  try {
    for (int iteration = 0; iteration < 10; ++iteration) {
      gradients.assign(gradients.size(), 1);
      // Rank 1 must not end the world while others have not yet got the sum before.
      if (what == "stop" && iteration == 5) c.barrier().wait(deadline_s);
      if (c.rank() == 1 && iteration == 5) {
        if (what == "kill") raise(SIGKILL);
        if (what == "hang") meeting.wait();
        if (what == "stop") throw Error(Errc::bad_data, "stage 3 saw a value that is not finite");
      }
      c.all_reduce(std::span(gradients)).wait(deadline_s);
      for (std::size_t i = 0; i < weights.size(); ++i) weights[i] += gradients[i];
    }
  } catch (Error const& e) {
    if (e.code() == Errc::bad_data) c.abort(e.what());
    double const waited =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    // No partial update: every weight has the five whole updates.
    bool whole = true;
    for (float const w : weights) whole = whole && w == 1 + 5 * static_cast<float>(c.size());
    std::printf("FAULT rank %d after %.1f s, %s update: %s\n", c.rank(), waited,
                whole ? "no partial" : "A PARTIAL", e.what());
    std::fflush(stdout);
    if (what == "hang" && c.rank() != 1) meeting.wait();
    return 0;
  }
  std::printf("rank %d saw no fault\n", c.rank());
  return 1;
}

}  // namespace

int main(int argc, char** argv) { return run(argc > 1 ? argv[1] : ""); }
