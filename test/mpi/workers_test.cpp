// SPDX-License-Identifier: Apache-2.0
#include <stagger/mpi/processes.hpp>

#include "catch.hpp"

#include <cstddef>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <stagger/collective/parameter_server.hpp>
#include <stagger/engine/run_together.hpp>
#include <stagger/host/threads.hpp>
#include <stagger/partition/cuts.hpp>
#include <stagger/schedule/fifo.hpp>
#include <stagger/schedule/one_f_one_b.hpp>
#include <stagger/staleness/wave_synchronous.hpp>
#include <stagger/train/pipeline.hpp>

#include "unit/train/server_oracle.hpp"

// Runs on as many processes as mpirun starts. Each assertion holds in every process.

namespace {

using namespace plain_layers;
namespace link = sg::collective::detail;

int processes() {
  int n = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &n);
  return n;
}

/// A server in each process, for the layers that lie there in all workers.
class LocalLink final : public sg::detail::ParameterLink {
 public:
  LocalLink(sg::collective::ParameterServer const& server, int worker)
      : own_(server.worker(worker).link()) {}
  void join(std::span<link::LayerParameters const> layers, sg::detail::WorkerRules const& rules,
            sg::detail::ParameterListener& listener) override {
    sg::FixedArray<link::LayerParameters> whole(layers.size());
    for (std::size_t l = 0; l < layers.size(); ++l) {
      sg::List<sg::detail::ParameterDeclaration> declarations;
      for (std::size_t i = 0; i < layers[l].count(); ++i)
        declarations.push_back(layers[l].declaration(i));
      whole[l].adopt(std::move(declarations), static_cast<int>(l), 0);
    }
    own_->join({whole.data(), whole.size()}, rules, listener);
  }
  void leave() noexcept override { own_->leave(); }
  void begin() override { own_->begin(); }
  void read(std::size_t l, std::byte* values) override { own_->read(l, values); }
  void push(std::size_t l, std::byte const* values, bool last) override {
    own_->push(l, values, last);
  }
  void ask(std::size_t l, std::uint32_t rounds) override { own_->ask(l, rounds); }
  void ask_last(std::size_t l) override { own_->ask_last(l); }
  std::uint32_t take(std::size_t l, std::uint32_t rounds, std::byte* values) override {
    return own_->take(l, rounds, values);
  }
  void take_last(std::size_t l, std::byte* values) override { own_->take_last(l, values); }
  void end(std::exception_ptr why) noexcept override { own_->end(why); }
  [[nodiscard]] bool span(int) noexcept override { return true; }
  [[nodiscard]] std::string waits_for() const override { return own_->waits_for(); }

 private:
  std::shared_ptr<sg::detail::ParameterLink> own_;
};

std::vector<int> even_cuts(int stages) {
  std::vector<int> cuts;
  for (int s = 1; s < stages; ++s) cuts.push_back(layers * s / stages);
  return cuts;
}

auto model(int fail_at = -1) {
  std::vector<Layer> stack;
  for (int l = 0; l < layers; ++l) stack.emplace_back(l);
  stack.back().fail_at = fail_at;
  return sg::Sequential{std::move(stack)};
}

sg::collective::ServerWorker spanning(sg::collective::ParameterServer const& server, int worker) {
  return sg::collective::ServerWorker(std::make_shared<LocalLink>(server, worker));
}

sg::optimizer::AdamW const adam{.rate = 0.05, .weight_decay = 0.1};

auto streaming(int in_flight, int distance, sg::collective::ServerWorker worker, auto device,
               int fail_at = -1, double deadline_s = 60) {
  return sg::Pipeline{model(fail_at)}.with(
      sg::partition::Cuts{even_cuts(processes())}, sg::schedule::Fifo{.in_flight = in_flight},
      sg::staleness::WaveSynchronous{.in_flight = in_flight,
                                     .distance = distance,
                                     .adds = sg::staleness::Adds::in_worker_order},
      std::move(worker), Loss{}, adam, device, sg::Options{.deadline_s = deadline_s});
}
auto stepping(sg::collective::ServerWorker worker, auto device) {
  return sg::Pipeline{model()}.with(sg::partition::Cuts{even_cuts(processes())},
                                    sg::schedule::OneFOneB{}, std::move(worker), Loss{}, adam,
                                    device);
}

}  // namespace

TEST_CASE("mpi/Processes: workers that stream over processes have the bits of workers on threads",
          "[mpi]") {
  for (int const in_flight : {1, 4})
    for (int const distance : {0, 1}) {
      CAPTURE(in_flight, distance);
      sg::collective::ParameterServer const server({.workers = 2});
      sg::collective::ParameterServer const expected({.workers = 2});
      auto a = streaming(in_flight, distance, spanning(server, 0), sg::mpi::Processes{});
      auto b = streaming(in_flight, distance, spanning(server, 1), sg::mpi::Processes{});
      auto c = streaming(in_flight, distance, expected.worker(0), sg::host::Threads{1});
      auto d = streaming(in_flight, distance, expected.worker(1), sg::host::Threads{1});
      for (int stream = 0; stream < 2; ++stream) {
        auto const of_a = data(11, 10.0 * stream);
        auto const of_b = data(11, 10.0 * stream + 1);
        auto const there = sg::run_together(a.stream(of_a), b.stream(of_b));
        auto const here = sg::run_together(c.stream(of_a), d.stream(of_b));
        REQUIRE(there[0].loss == here[0].loss);
        REQUIRE(there[1].loss == here[1].loss);
        REQUIRE(a.steps() == c.steps());
      }
      for (auto* const train : {&a, &b}) {
        train->gather_parameters();
        REQUIRE(weights(*train) == weights(c));
      }
    }
}

TEST_CASE("mpi/Processes: workers that step over processes have the bits of workers on threads",
          "[mpi]") {
  sg::collective::ParameterServer const server({.workers = 2});
  sg::collective::ParameterServer const expected({.workers = 2});
  auto a = stepping(spanning(server, 0), sg::mpi::Processes{});
  auto b = stepping(spanning(server, 1), sg::mpi::Processes{});
  auto c = stepping(expected.worker(0), sg::host::Threads{1});
  auto d = stepping(expected.worker(1), sg::host::Threads{1});
  for (int step = 0; step < 4; ++step) {
    auto const of_a = data(4, 10.0 * step);
    auto const of_b = data(4, 10.0 * step + 1);
    auto const there = sg::run_together(a.step(of_a), b.step(of_b));
    auto const here = sg::run_together(c.step(of_a), d.step(of_b));
    REQUIRE(there[0].loss == here[0].loss);
    double const held_out = sg::run(a.evaluate(of_b)).loss;
    REQUIRE(held_out == sg::run(c.evaluate(of_b)).loss);
  }
  a.gather_parameters();
  REQUIRE(weights(a) == weights(c));
}

TEST_CASE("mpi/Processes: a worker that fails ends the streams of the others in all processes",
          "[mpi]") {
  sg::collective::ParameterServer const server({.workers = 2});
  auto a = streaming(2, 0, spanning(server, 0), sg::mpi::Processes{});
  auto b = streaming(2, 0, spanning(server, 1), sg::mpi::Processes{}, 7);
  auto const batch = data(12);
  REQUIRE_THROWS_WITH(
      sg::run_together(a.stream(batch), b.stream(batch)),
      Catch::Matchers::Contains("out of ink") || Catch::Matchers::Contains("worker 1 has failed"));
  auto const good = data(6);
  sg::run_together(a.stream(good), b.stream(good));
  a.gather_parameters();
  b.gather_parameters();
  REQUIRE(weights(a) == weights(b));
}

TEST_CASE("mpi/Processes: a worker that waits too long names the other and its pushes", "[mpi]") {
  sg::collective::ParameterServer const server({.workers = 2});
  auto a = streaming(2, 0, spanning(server, 0), sg::mpi::Processes{}, -1, 0.5);
  auto b = streaming(2, 0, spanning(server, 1), sg::mpi::Processes{}, -1, 0.5);
  auto const batch = data(8);
  REQUIRE_THROWS_WITH(run(a.stream(batch)),
                      Catch::Matchers::Contains("worker 1, which has made 0 pushes"));
}

TEST_CASE("mpi/Processes: refuses a server that lies in one process", "[mpi]") {
  sg::collective::ParameterServer const server({.workers = 1});
  REQUIRE_THROWS_WITH(streaming(2, 0, server.worker(0), sg::mpi::Processes{}),
                      Catch::Matchers::Contains("lies in one of them"));
}
