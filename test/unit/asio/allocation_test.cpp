// SPDX-License-Identifier: Apache-2.0
#include <stagger/host/asio_parameter_server.hpp>

#include "catch.hpp"

#include <thread>

#include "../train/scalar_worker.hpp"
#include "count_allocations.hpp"

#ifdef COUNTS_ALLOCATIONS

namespace {

namespace sg = stagger;

/// Of the third round of two workers and of their server, which the fourth goes on behind.
template <class Make, class Take> long allocations_of_workers(Make make, Take take) {
  sg::collective::ParameterServer const server({.workers = 2});
  sg::host::AsioParameterServer const listening(server);
  sg::host::RemoteParameterServer const remote({.port = listening.port()});
  auto a = make(remote.worker(0));
  auto b = make(remote.worker(1));
  auto const few = scalar_worker::batch(4);
  auto const many = scalar_worker::batch(10);
  auto const round = [&](auto& train) {
    sg::run(take(train, few));
    sg::run(train.evaluate(few));
    sg::run(take(train, many));
  };
  std::thread other([&] {
    for (int i = 0; i < 4; ++i) round(b);
  });
  round(a);
  round(a);
  long const count = allocations_of([&] { round(a); });
  round(a);
  other.join();
  return count;
}

}  // namespace

TEST_CASE("asio/allocation: none in a step of a worker, nor in its server, after the first",
          "[asio]") {
  CHECK(allocations_of_workers([](auto worker) { return scalar_worker::stepping(worker); },
                               [](auto& train, auto& batch) { return train.step(batch); }) == 0);
}

TEST_CASE("asio/allocation: none in a stream of a worker, nor in its server, after the first",
          "[asio]") {
  CHECK(allocations_of_workers([](auto worker) { return scalar_worker::streaming(worker); },
                               [](auto& train, auto& batch) { return train.stream(batch); }) == 0);
}

#endif
