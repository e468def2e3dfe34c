// SPDX-License-Identifier: Apache-2.0
#include <stagger/mpi/parameter_server.hpp>

#include "catch.hpp"

#include <stagger/mpi/processes.hpp>

#include <cstddef>
#include <utility>
#include <vector>

#include <stagger/host/threads.hpp>
#include <stagger/partition/cuts.hpp>
#include <stagger/schedule/fifo.hpp>
#include <stagger/schedule/one_f_one_b.hpp>
#include <stagger/staleness/asynchronous.hpp>
#include <stagger/staleness/local_sgd.hpp>
#include <stagger/staleness/overlapped_synchronous.hpp>
#include <stagger/staleness/stale_synchronous.hpp>
#include <stagger/staleness/synchronous.hpp>
#include <stagger/staleness/wave_synchronous.hpp>
#include <stagger/train/pipeline.hpp>

#include "count_new.hpp"
#include "unit/train/scalar_worker.hpp"
#include "world.hpp"

namespace worker_allocation_test {

#ifndef TEST_SANITIZED

// Runs on as many processes as mpirun starts, a worker in each. Each assertion holds in every process.

namespace {

using namespace scalar_worker;

auto const streams = [](auto& train, auto const& batch) { return train.stream(batch); };
auto const steps = [](auto& train, auto const& batch) { return train.step(batch); };

/// Of all threads of this process in rounds behind the first ones, in which every process does alike.
/// @param make  (worker) -> trainer. @param take  (trainer, batch) -> step
template <class Make, class Take, class Model = sg::staleness::Synchronous>
long allocations_of_rounds(int workers, std::vector<int> layer_processes, Make make, Take take,
                           Model const& staleness = {},
                           std::vector<std::size_t> const& lengths = {8}) {
  sg::mpi::ParameterServer const server(
      {.workers = workers, .layer_processes = std::move(layer_processes)}, sgd, staleness);
  long count = 0;
  {
    auto train = make(server);
    std::vector<decltype(batch(0))> batches;
    for (std::size_t const length : lengths) batches.push_back(batch(length));
    auto const rounds = [&](int how_many) {
      for (int round = 0; round < how_many; ++round)
        for (auto const& each : batches) sg::run(take(train, each));
      MPI_Barrier(MPI_COMM_WORLD);
    };
    rounds(2);
    count = allocations_of([&] { rounds(5); });
    rounds(1);
  }
  server.serve();
  return count;
}

/// The layers in each process in turn, or all in the last one.
std::vector<std::vector<int>> placements() { return {{}, std::vector<int>(3, processes() - 1)}; }

sg::staleness::OverlappedSynchronous<sg::staleness::overlapped::ParameterGradientProduct,
                                     sg::staleness::overlapped::SplitLayer,
                                     sg::staleness::overlapped::ShareLate> const late{
    .budget = {0.6}};

auto with(auto const& staleness, auto schedule, sg::collective::ServerWorker worker, auto device,
          std::vector<int> cuts) {
  return pipeline().with(sg::partition::Cuts{std::move(cuts)}, schedule, staleness,
                         std::move(worker), Sum{}, sgd, device);
}

}  // namespace

TEST_CASE("mpi/allocation: none in a step of a worker, nor in its servers, after the first",
          "[mpi]") {
  for (auto const& where : placements()) {
    int number = 0;
    each_model_of_steps([&](auto const& model) {
      CAPTURE(number++);
      CHECK(allocations_of_rounds(
                processes(), where,
                [&](auto const& server) { return stepping(model, server.worker(process())); },
                steps, model) == 0);
    });
  }
}

TEST_CASE("mpi/allocation: none in a stream of a worker, nor in its servers, after the first",
          "[mpi]") {
  for (auto const& where : placements())
    CHECK(allocations_of_rounds(
              processes(), where,
              [](auto const& server) { return streaming(server.worker(process())); }, streams, {},
              {5, 8, 11}) == 0);
}

TEST_CASE("mpi/allocation: none in a worker that lies in several processes", "[mpi]") {
  std::vector<int> const cuts = processes() == 1 ? std::vector<int>{} : std::vector<int>{2};
  if (processes() > 2) return;
  for (auto const& where : placements()) {
    auto const count = [&](auto const& model) {
      return allocations_of_rounds(
          1, where,
          [&](auto const& server) {
            return with(model, sg::schedule::OneFOneB{}, server.worker(0), sg::mpi::Processes{},
                        cuts);
          },
          steps, model);
    };
    CHECK(count(sg::staleness::Synchronous{}) == 0);
    CHECK(count(sg::staleness::LocalSgd{.period = 2}) == 0);
    CHECK(count(late) == 0);
    CHECK(allocations_of_rounds(
              1, where,
              [&](auto const& server) {
                return with(
                    sg::staleness::WaveSynchronous{.in_flight = 4,
                                                   .adds = sg::staleness::Adds::in_worker_order},
                    sg::schedule::Fifo{.in_flight = 4}, server.worker(0), sg::mpi::Processes{},
                    cuts);
              },
              streams) == 0);
  }
}

TEST_CASE("mpi/allocation: none in streams of several lengths once each was seen", "[mpi]") {
  std::vector<int> const cuts = processes() == 1 ? std::vector<int>{} : std::vector<int>{2};
  if (processes() > 2) return;
  for (auto const& where : placements()) {
    CHECK(allocations_of_rounds(1, where,
                                [&](auto const& server) {
                                  return with(
                                      sg::staleness::WaveSynchronous{
                                          .in_flight = 4,
                                          .adds = sg::staleness::Adds::in_worker_order},
                                      sg::schedule::Fifo{.in_flight = 4}, server.worker(0),
                                      sg::mpi::Processes{}, cuts);
                                },
                                streams, {}, {5, 8, 11}) == 0);
  }
}

#endif

}  // namespace worker_allocation_test
