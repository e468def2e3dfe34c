// SPDX-License-Identifier: Apache-2.0
#include <stagger/staleness/local_sgd.hpp>

#include "catch.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <thread>
#include <utility>
#include <vector>

#include <stagger/collective/parameter_server.hpp>
#include <stagger/engine/run_together.hpp>
#include <stagger/host/threads.hpp>
#include <stagger/partition/cuts.hpp>
#include <stagger/sim/virtual_clock.hpp>
#include <stagger/staleness/synchronous.hpp>
#include <stagger/train/pipeline.hpp>

#include "train/server_oracle.hpp"

namespace local_sgd_test {

namespace sg = stagger;
using namespace plain_layers;
using sg::staleness::LocalSgd;

namespace {

sg::optimizer::AdamW const adam{.rate = 0.05, .weight_decay = 0.1};
sg::optimizer::Sgd const momentum{.rate = 0.02, .momentum = 0.9, .weight_decay = 0.01};

/// Now and then makes its worker wait.
struct SlowSgd : sg::optimizer::Sgd {
  int slow = 0;
  auto fields() const { return std::tie(rate); }
  template <class T>
  void update(sg::OptimizerView<T> const& view, double scale, std::int64_t step) const noexcept {
    if (step % 3 == slow) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    Sgd::update(view, scale, step);
  }
};

template <class Model, class Optimizer, class Device = sg::host::Threads>
auto make(Model const& model, sg::collective::ParameterServer const& server, int worker,
          Optimizer const& optimizer, std::vector<int> cuts = {2},
          Device device = sg::host::Threads{2}, int fail_at = -1) {
  std::vector<Layer> stack;
  for (int l = 0; l < layers; ++l) stack.emplace_back(l);
  stack.back().fail_at = fail_at;
  return sg::Pipeline{sg::Sequential{std::move(stack)}}.with(sg::partition::Cuts{std::move(cuts)},
                                                             model, server.worker(worker), Loss{},
                                                             optimizer, std::move(device));
}

/// A worker's weights, and what its optimizer remembers.
using All = std::vector<Numbers>;
template <class Trainer> All everything(Trainer& train) {
  All all = weights(train);
  for (Numbers& state : states(train)) all.push_back(std::move(state));
  return all;
}

/// The same, as what one worker alone makes of it: `OracleServer` takes one step after the other.
template <class Optimizer> All memories(OracleServer<Optimizer> const& worker) {
  All all = worker.w;
  for (std::size_t l = 0; l < layers; ++l) {
    all.push_back(worker.first[l]);
    all.push_back(Optimizer::states == 2 ? worker.second[l] : Numbers{});
  }
  return all;
}

/// Where all meet: `sum` becomes what it was and the weighted changes of all workers.
void average(All& before, std::vector<All*> const& of, std::vector<float> const& shares) {
  All const from = before;
  for (std::size_t n = 0; n < of.size(); ++n)
    for (std::size_t l = 0; l < from.size(); ++l)
      for (std::size_t i = 0; i < from[l].size(); ++i)
        before[l][i] += shares[n] * ((*of[n])[l][i] - from[l][i]);
  for (All* each : of) *each = before;
}

/// Workers one after the other: their own steps, and a mean after every `period`.
template <class Optimizer> struct Oracle {
  LocalSgd model;
  std::vector<float> shares;
  std::vector<OracleServer<Optimizer>> workers;
  All w = first_weights();
  All first{layers, Numbers(width* width + width)};
  All second = first;
  int steps = 0;

  void step(std::vector<Batch> const& batches) {
    for (std::size_t n = 0; n < workers.size(); ++n)
      workers[n].step(gradients(workers[n].w, batches[n]));
    if (++steps % model.period != 0) return;
    std::vector<All*> ws, firsts, seconds;
    for (auto& worker : workers) {
      ws.push_back(&worker.w);
      firsts.push_back(&worker.first);
      seconds.push_back(&worker.second);
    }
    average(w, ws, shares);
    if (!model.average_state) return;
    average(first, firsts, shares);
    average(second, seconds, shares);
  }
};

std::vector<std::vector<int>> const cuts{{2}, {1}, {1, 2, 3}, {}};

/// Trains workers and the oracle, and compares after each step: weights and states.
template <class Optimizer>
void compare(LocalSgd const& model, int workers, int threads, Optimizer const& optimizer,
             std::vector<double> const& shares = {}) {
  CAPTURE(model.period, model.average_state, workers, threads);
  auto const count = static_cast<std::size_t>(workers);
  sg::collective::ParameterServer const server(
      {.workers = workers, .shards = 2, .weights = shares});
  std::vector<decltype(make(model, server, 0, optimizer))> trainers;
  Oracle<Optimizer> oracle{model, {}, {}};
  for (int n = 0; n < workers; ++n) {
    trainers.push_back(make(model, server, n, optimizer, cuts[static_cast<std::size_t>(n)],
                            sg::host::Threads{1 + (n + threads) % threads}));
    oracle.workers.push_back({optimizer});
    oracle.shares.push_back(static_cast<float>(
        shares.empty() ? 1 / static_cast<double>(workers) : shares[static_cast<std::size_t>(n)]));
  }
  for (int step = 0; step < 2 * model.period + 1; ++step) {
    std::vector<Batch> batches;
    std::vector<sg::Step> steps;
    for (std::size_t n = 0; n < count; ++n)
      batches.push_back(data(2, static_cast<double>(n) + 10.0 * step));
    for (std::size_t n = 0; n < count; ++n) steps.push_back(trainers[n].step(batches[n]));
    sg::run_together(std::move(steps));
    oracle.step(batches);
    for (std::size_t n = 0; n < count; ++n)
      REQUIRE(everything(trainers[n]) == memories(oracle.workers[n]));
  }
}

}  // namespace

TEST_CASE("staleness/LocalSgd: workers have the bits of a sequential loop, whatever their cuts",
          "[staleness]") {
  for (int const workers : {1, 2, 3, 4})
    for (int const period : {1, 2, 4})
      for (bool const state : {true, false})
        for (int const threads : {1, 2, 4}) {
          compare({.period = period, .average_state = state}, workers, threads, momentum);
          compare({.period = period, .average_state = state}, workers, threads, adam);
        }
}

TEST_CASE("staleness/LocalSgd: shares of the data weigh the mean", "[staleness]") {
  compare({.period = 2}, 3, 2, adam, {0.5, 0.3, 0.2});
}

TEST_CASE("staleness/LocalSgd: workers that are slow by turns change no bit", "[staleness]") {
  // Each worker runs on a thread of its own and never waits but at a mean.
  LocalSgd const model{.period = 2};
  constexpr std::size_t workers = 3;
  sg::collective::ParameterServer const server({.workers = 3});
  std::vector<decltype(make(model, server, 0, SlowSgd{}))> trainers;
  Oracle<SlowSgd> oracle{model, std::vector<float>(workers, 1.0F / 3), {}};
  for (int n = 0; n < 3; ++n) {
    trainers.push_back(make(model, server, n, SlowSgd{momentum, n}));
    oracle.workers.push_back({SlowSgd{momentum, 3}});
  }
  constexpr int steps = 8;
  std::vector<std::vector<Batch>> batches(steps);
  for (std::size_t j = 0; j < steps; ++j)
    for (std::size_t n = 0; n < workers; ++n)
      batches[j].push_back(data(2, static_cast<double>(n + 10 * j)));
  std::vector<std::thread> threads;
  for (std::size_t n = 0; n < workers; ++n)
    threads.emplace_back([&, n] {
      for (std::size_t j = 0; j < steps; ++j)
        static_cast<void>(sg::run(trainers[n].step(batches[j][n])));
    });
  for (auto& thread : threads) thread.join();
  for (auto const& of_step : batches) oracle.step(of_step);
  for (std::size_t n = 0; n < workers; ++n)
    REQUIRE(everything(trainers[n]) == memories(oracle.workers[n]));
}

TEST_CASE("staleness/LocalSgd: in virtual time, a mean is paid for once in a period",
          "[staleness]") {
  for (int const period : {1, 3}) {
    sg::sim::Clock const clock({.rate = 10});
    sg::collective::ParameterServer const server({.workers = 2});
    LocalSgd const model{.period = period};
    auto const worker = [&](int n) {
      sg::sim::VirtualClock device;
      device.costs = sg::schedule::Costs::uniform(1 + n, 2, 0);
      device.clock = clock;
      return make(model, server, n, adam, {2}, device);
    };
    std::vector<decltype(worker(0))> trainers;
    Oracle<sg::optimizer::AdamW> oracle{model, {0.5F, 0.5F}, {}};
    for (int n = 0; n < 2; ++n) {
      trainers.push_back(worker(n));
      oracle.workers.push_back({adam});
    }
    for (int step = 0; step < 7; ++step) {
      std::vector<Batch> const batches{data(2, 10.0 * step), data(2, 10.0 * step + 1)};
      double const before_s = clock.now_s();
      sg::run_together(trainers[0].step(batches[0]), trainers[1].step(batches[1]));
      oracle.step(batches);
      for (std::size_t n = 0; n < 2; ++n)
        REQUIRE(everything(trainers[n]) == memories(oracle.workers[n]));
      // A mean has both workers send and receive four layers of 12 values and two states at 10 B/s.
      double const travelling_s = 2 * 2 * 4 * 12 * 3 * 4 / 10.0 / 2;
      CHECK((clock.now_s() - before_s > travelling_s) == ((step + 1) % period == 0));
    }
  }
}

TEST_CASE(
    "staleness/LocalSgd: a mean after each step of plain descent is the step of all gradients",
    "[staleness]") {
  // Not to the last bit: here each worker rounds its own weights, there the server once. Each of the
  // few roundings is at most half a unit in the last place of a weight, which is below 2.
  sg::optimizer::Sgd const plain{.rate = 0.05};
  for (int const workers : {1, 2, 3, 4}) {
    auto const count = static_cast<std::size_t>(workers);
    sg::collective::ParameterServer const mean({.workers = workers});
    sg::collective::ParameterServer const sums({.workers = workers});
    std::vector<decltype(make(LocalSgd{}, mean, 0, plain))> local;
    std::vector<decltype(make(sg::staleness::Synchronous{}, sums, 0, plain))> bulk;
    for (int n = 0; n < workers; ++n) {
      local.push_back(make(LocalSgd{}, mean, n, plain));
      bulk.push_back(make(sg::staleness::Synchronous{}, sums, n, plain));
    }
    float most = 0;
    for (int step = 0; step < 10; ++step) {
      std::vector<Batch> batches;
      std::vector<sg::Step> steps;
      for (std::size_t n = 0; n < count; ++n)
        batches.push_back(data(2, static_cast<double>(n) + 10.0 * step));
      for (std::size_t n = 0; n < count; ++n) {
        steps.push_back(local[n].step(batches[n]));
        steps.push_back(bulk[n].step(batches[n]));
      }
      sg::run_together(std::move(steps));
      auto const a = weights(local[0]);
      auto const b = weights(bulk[0]);
      for (std::size_t l = 0; l < layers; ++l)
        for (std::size_t i = 0; i < a[l].size(); ++i)
          most = std::max(most, std::abs(a[l][i] - b[l][i]));
    }
    CHECK(most <= 10 * 8 * std::numeric_limits<float>::epsilon());
    CHECK(weights(local[0]) != first_weights());
  }
}

TEST_CASE("staleness/LocalSgd: after a failure, all go on from the last mean", "[staleness]") {
  LocalSgd const model{.period = 3};
  sg::collective::ParameterServer const server({.workers = 2});
  auto a = make(model, server, 0, momentum);
  auto b = make(model, server, 1, momentum, {1}, sg::host::Threads{2}, 4);
  auto const batch = data(2);
  for (int step = 0; step < 4; ++step) sg::run_together(a.step(batch), b.step(batch));
  auto const own = everything(a);  // a step beyond the mean
  auto const bad = data(6);
  REQUIRE_THROWS_WITH(run(b.step(bad)), "out of ink");
  auto const mean = everything(b);
  REQUIRE(mean != own);
  for (int step = 0; step < 2; ++step) {  // a learns of it in its next exchange
    try {
      static_cast<void>(run(a.step(batch)));
    } catch (sg::Error const& error) {
      CHECK(error.code() == sg::Errc::peer_failed);
    }
  }
  REQUIRE(everything(a) == mean);
  for (int step = 0; step < 3; ++step) sg::run_together(a.step(batch), b.step(batch));
  REQUIRE(everything(a) == everything(b));
  REQUIRE(everything(a) != mean);
}

namespace {

struct Later : LocalSgd {
  static constexpr sg::staleness::Adds adds = sg::staleness::Adds::on_arrival;
};
struct Never : LocalSgd {
  int minibatches() const { return 0; }
};

}  // namespace

TEST_CASE("staleness/LocalSgd: refuses what cannot be, and workers that differ", "[staleness]") {
  sg::collective::ParameterServer const server({.workers = 2});
  REQUIRE_THROWS_WITH(make(LocalSgd{.period = 0}, server, 0, momentum),
                      "workers cannot take the mean of their weights after every 0 steps; let "
                      "LocalSgd::period be at least 1");
  REQUIRE_THROWS_WITH(make(Never{}, server, 0, momentum),
                      "a push of 0 minibatches cannot be made; let minibatches() of the staleness "
                      "model be at least 1");
  REQUIRE_THROWS_WITH(make(Later{{.period = 2}}, server, 0, momentum),
                      Catch::Matchers::Contains("a mean of weights"));
  auto const first = make(LocalSgd{.period = 2}, server, 0, momentum);
  REQUIRE_THROWS_WITH(make(LocalSgd{.period = 3}, server, 1, momentum),
                      Catch::Matchers::Contains("worker 1 pushes after every 3 minibatches"));
  REQUIRE_THROWS_WITH(make(LocalSgd{.period = 2, .average_state = false}, server, 1, momentum),
                      Catch::Matchers::Contains("give all workers the same staleness model"));
}

}  // namespace local_sgd_test
