// SPDX-License-Identifier: Apache-2.0
#include <stagger/mpi/parameter_server.hpp>

#include "catch.hpp"

#include <vector>

#include <stagger/host/threads.hpp>

#include "unit/train/averaged_changes.hpp"

namespace averaged_changes_test {

TEST_CASE("mpi/ParameterServer: averaged changes have the bits of a sequential loop", "[mpi]") {
  using namespace averaged_changes;
  int process = 0, processes = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &process);
  MPI_Comm_size(MPI_COMM_WORLD, &processes);
  std::vector<int> own;
  for (int n = process; n < workers; n += processes) own.push_back(n);
  compare(
      own,
      [](std::vector<double> const& given, auto body) {
        sg::mpi::ParameterServer const server(
            {.workers = workers, .weights = given, .average_changes = true});
        body([&](int n) { return server.worker(n); });
        server.serve();
      },
      [](int n) { return sg::host::Threads{1 + n}; });
}

}  // namespace averaged_changes_test
