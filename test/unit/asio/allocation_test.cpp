// SPDX-License-Identifier: Apache-2.0
#include <stagger/host/asio_parameter_server.hpp>

#include "catch.hpp"

#include "../train/scalar_worker.hpp"
#include "count_allocations.hpp"

namespace allocation_test {

#ifdef COUNTS_ALLOCATIONS

namespace {

namespace sg = stagger;

/// Of two workers and of their server.
template <class Model, class Make, class Take>
long allocations_of_workers(Model const& model, Make make, Take take) {
  sg::collective::ParameterServer const server({.workers = 2});
  sg::host::AsioParameterServer const listening(server, {}, scalar_worker::sgd, model);
  sg::host::RemoteParameterServer const remote({.port = listening.port()});
  auto a = make(remote.worker(0));
  auto b = make(remote.worker(1));
  return scalar_worker::allocations_of_a_round(a, b, take,
                                               [](auto body) { return allocations_of(body); });
}

}  // namespace

TEST_CASE("asio/allocation: none in a step of a worker, nor in its server, after the first",
          "[asio]") {
  int number = 0;
  scalar_worker::each_model_of_steps([&](auto const& model) {
    CAPTURE(number++);
    CHECK(allocations_of_workers(
              model, [&](auto worker) { return scalar_worker::stepping(model, worker); },
              [](auto& train, auto& batch) { return train.step(batch); }) == 0);
  });
}

TEST_CASE("asio/allocation: none in a stream of a worker, nor in its server, after the first",
          "[asio]") {
  CHECK(allocations_of_workers(
            sg::staleness::Synchronous{},
            [](auto worker) { return scalar_worker::streaming(worker); },
            [](auto& train, auto& batch) { return train.stream(batch); }) == 0);
}

#endif

}  // namespace allocation_test
