// SPDX-License-Identifier: Apache-2.0
#include <stagger/host/asio_parameter_server.hpp>

#include "catch.hpp"

#include <vector>

#include <stagger/host/threads.hpp>

#include "../train/averaged_changes.hpp"

namespace averaged_changes_test {

TEST_CASE("asio/AsioParameterServer: averaged changes have the bits of a sequential loop",
          "[asio]") {
  using namespace averaged_changes;
  compare(
      {0, 1, 2},
      [](std::vector<double> const& given, auto body) {
        sg::collective::ParameterServer const server(
            {.workers = workers, .weights = given, .average_changes = true});
        sg::host::AsioParameterServer const listening(server);
        sg::host::RemoteParameterServer const remote({.port = listening.port()});
        // One worker is in the server's process.
        body([&](int n) { return n == 1 ? server.worker(n) : remote.worker(n); });
      },
      [](int n) { return sg::host::Threads{1 + n}; });
}

}  // namespace averaged_changes_test
