// SPDX-License-Identifier: Apache-2.0
// Replicas in processes of their own: each works on its rows of the batch, gradients are added over
// MPI in rank order.
//
//     process 0 | rows 0 .. n/4   | dw --+                     +--> w -= rate * dw
//     process 1 | rows n/4 .. n/2 | dw --+-- sum, same bits ---+--> ...
//     process 2 | ...             |      |   on every rank     |
//
// Build:  mpicxx -std=c++20 -O2 -I include examples/11_processes.cpp -pthread -o processes
// Run:    mpirun -n 4 ./processes      (or ./processes, which is one process)
// Prints: the line that the points lie on, whatever the number of processes
// uses: stagger::mpi
// expect: 1 process: y = 2[.]000 x - 1[.]000
#include <cstdio>
#include <vector>

#include <stagger/collective/handshake.hpp>
#include <stagger/collective/rows.hpp>
#include <stagger/mpi/session.hpp>
#include <stagger/mpi/world.hpp>
namespace sg = stagger;

int train() {
  sg::mpi::Session const mpi;  // initialises MPI, and finalises it at the end
  auto const launch = sg::collective::find_launch();
  auto own = sg::mpi::World{}.connect(launch ? launch->size : 1);
  auto& ranks = own.front();

  constexpr std::size_t points = 1200;
  constexpr float rate = 0.5F;
  // All ranks must run the same thing; the first difference ends them with one sentence.
  std::vector<sg::collective::Fact> const facts{sg::collective::library_fact(),
                                                {"the number of points", std::to_string(points)},
                                                {"the learning rate", std::to_string(rate)}};
  sg::collective::agree(ranks, facts, 10);

  auto const rows = sg::collective::RowShares(ranks.size()).rows(points, ranks.rank());
  float w[2] = {0, 0};
  for (int step = 0; step < 200; ++step) {
    float dw[2] = {0, 0};
    for (std::size_t i = rows.first; i < rows.last; ++i) {
      float const x = static_cast<float>(i) / points * 2 - 1;
      float const error = w[0] * x + w[1] - (2 * x - 1);
      dw[0] += error * x;
      dw[1] += error;
    }
    ranks.all_reduce(std::span(dw)).wait(10);  // seconds; who does not come is named
    for (int k = 0; k < 2; ++k) w[k] -= rate * dw[k] / points;
  }
  if (ranks.rank() == 0) {
    std::printf("%d process%s: y = %.3f x - %.3f\n", ranks.size(), ranks.size() == 1 ? "" : "es",
                static_cast<double>(w[0]), -static_cast<double>(w[1]));
  }
  return 0;
}

int main() {
  try {
    return train();
  } catch (sg::Error const& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
