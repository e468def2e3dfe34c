// SPDX-License-Identifier: Apache-2.0
#include <stagger/host/asio_parameter_server.hpp>

#include "catch.hpp"

#include <stagger/host/threads.hpp>

#include "../train/arriving_waves.hpp"

using namespace arriving_waves;

TEST_CASE("asio/AsioParameterServer: on arrival, minibatches see what the server's log says",
          "[asio]") {
  for (int const workers : {1, 2, 4})
    for (int const in_flight : {1, 2, 4})
      for (int const distance : {0, 1, 2, 8}) {
        sg::collective::ParameterServer const server(
            {.workers = workers, .shards = 2, .log = true});
        sg::host::AsioParameterServer const listening(server);
        sg::host::RemoteParameterServer const remote({.port = listening.port()});
        compare(
            {.in_flight = in_flight, .distance = distance}, workers, 21,
            [&](int n) { return remote.worker(n); },
            [](int n) { return sg::host::Threads{1 + n % 3}; }, [&] { return logs_of(server); });
      }
}
