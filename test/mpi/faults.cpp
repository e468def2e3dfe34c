// SPDX-License-Identifier: Apache-2.0
// faults WHAT: rank 1 of several dies or hangs between two exchanges; every other rank prints the
// error it got and how long it waited, and leaves with code 0. With "late" rank 0 alone sees an
// error, and all live to the end of main: the job ends with code 0.

#include <signal.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <string>

#include <stagger/mpi/detail/exchange.hpp>

#include "barrier.hpp"

using namespace stagger;

namespace {

constexpr double deadline_s = 2;

int run(std::string const& what) {
  mpi::Session const session;
  mpi::detail::Exchange all(MPI_COMM_WORLD, 10);
  std::array<double, 100> numbers{};
  if (what == "late") {
    if (all.rank() != 0) return 0;
    try {
      all.maximum(numbers, "compare numbers", 0.1);
    } catch (Error const&) {
      return 0;
    }
    return 1;
  }
  Barrier const barrier;
  auto const start = std::chrono::steady_clock::now();
  try {
    for (int i = 0; i < 10; ++i) {
      if (all.rank() == 1 && i == 5) {
        if (what == "kill") raise(SIGKILL);
        if (what == "hang") barrier.wait();
      }
      all.maximum(numbers, "compare numbers", deadline_s);
      numbers.back() += 1;
    }
  } catch (Error const& e) {
    std::chrono::duration<double> const waited = std::chrono::steady_clock::now() - start;
    std::string again;  // nothing can be said any more
    try {
      all.broadcast(std::as_writable_bytes(std::span(numbers)), 0, "hear numbers", deadline_s);
    } catch (Error const& later) {
      again = later.what();
    }
    std::printf("FAULT rank %d after %.1f s, %s update: %s. %s\n", all.rank(), waited.count(),
                numbers.back() == 5 ? "no partial" : "A PARTIAL", e.what(), again.c_str());
    std::fflush(stdout);
    if (what == "hang" && all.rank() != 1) barrier.wait();
    return 0;
  }
  std::printf("rank %d saw no fault\n", all.rank());
  return what == "hang" && all.rank() == 1 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) { return run(argc > 1 ? argv[1] : ""); }
