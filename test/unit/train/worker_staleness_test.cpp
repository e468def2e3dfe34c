// SPDX-License-Identifier: Apache-2.0
#include <stagger/train/pipeline.hpp>

#include "catch.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <stagger/collective/parameter_server.hpp>
#include <stagger/engine/run_together.hpp>
#include <stagger/host/threads.hpp>
#include <stagger/parameters/version_tag.hpp>
#include <stagger/partition/cuts.hpp>
#include <stagger/schedule/fifo.hpp>
#include <stagger/sim/virtual_clock.hpp>
#include <stagger/staleness/asynchronous.hpp>
#include <stagger/staleness/local_sgd.hpp>
#include <stagger/staleness/overlapped_synchronous.hpp>
#include <stagger/staleness/stale_synchronous.hpp>
#include <stagger/staleness/wave_synchronous.hpp>

#include "forwarding_link.hpp"
#include "plain_layers.hpp"

// What the weights of each minibatch lacked of other workers, as they say themselves.

namespace worker_staleness_test {

namespace {

using namespace plain_layers;
using sg::schedule::Kind;
using sg::staleness::Adds;
using sg::staleness::WaveSynchronous;

constexpr std::size_t layers = 4;
constexpr int steps = 12;  // where workers drift apart

auto model() {
  std::vector<Layer> stack;
  for (std::size_t l = 0; l < layers; ++l) stack.emplace_back(static_cast<int>(l));
  return sg::Sequential{std::move(stack)};
}
sg::optimizer::Sgd const sgd{.rate = 0.02};
sg::Options const recorded{.record = true};

auto streaming(WaveSynchronous const& waves, sg::collective::ParameterServer const& server, int n,
               auto device) {
  return sg::Pipeline{model()}.with(sg::partition::Cuts{{n % 3 + 1}},
                                    sg::schedule::Fifo{waves.in_flight}, waves, server.worker(n),
                                    Loss{}, sgd, std::move(device), recorded);
}
auto stepping(auto const& model_of_workers, sg::collective::ParameterServer const& server, int n,
              auto device) {
  return sg::Pipeline{model()}.with(sg::partition::Cuts{{2}}, model_of_workers, server.worker(n),
                                    Loss{}, sgd, std::move(device), recorded);
}

sg::sim::VirtualClock timed(sg::sim::Clock const& clock, int n) {
  sg::sim::VirtualClock device;
  device.costs = sg::schedule::Costs::uniform(1 + 1.5 * n, 2, 0);
  device.jitter = 0.1;
  device.seed = static_cast<std::uint64_t>(n);
  device.clock = clock;
  return device;
}

/// [k] minibatches that lacked k. @param lacked  [minibatches]
std::vector<std::uint64_t> histogram(std::vector<int> const& lacked) {
  std::vector<std::uint64_t> counts(64);
  for (int const each : lacked) ++counts[static_cast<std::size_t>(each)];
  return counts;
}

/// What a model lets each minibatch lack at most.
template <class Model> std::vector<int> bounds(Model const& model_of_workers, int minibatches) {
  std::vector<int> most;
  for (int m = 0; m < minibatches; ++m)
    most.push_back(m / model_of_workers.minibatches() - std::max(0, model_of_workers.needs(m)));
  return most;
}

/// [minibatches] as the forward of each tells, the most of any stage.
std::vector<int> lacked_of(sg::schedule::Timeline const& timeline, int minibatches) {
  std::vector<int> lacked(static_cast<std::size_t>(minibatches), -1);
  for (auto const& span : timeline.spans)
    if (span.action.kind == Kind::forward) {
      auto& most = lacked[static_cast<std::size_t>(span.action.microbatch)];
      most = std::max(most, span.lacked);
    }
  return lacked;
}

/// So many steps of each worker.
template <class Trainer> void train(std::vector<Trainer>& trainers, int count) {
  auto const batch = data(2);
  std::vector<int> taken(trainers.size());
  std::vector<sg::Steps> workers;
  for (std::size_t n = 0; n < trainers.size(); ++n)
    workers.emplace_back([&, n](sg::Metrics const*) {
      if (taken[n]++ == count) return std::optional<sg::Step>{};
      return std::optional(trainers[n].step(batch));
    });
  static_cast<void>(sg::run_together(std::move(workers)));
}

}  // namespace

TEST_CASE(
    "train/Trainer: in the order of workers, waves lack exactly what the model lets them lack",
    "[train]") {
  constexpr int minibatches = 23;
  auto const batch = data(minibatches);
  for (int const in_flight : {1, 2, 4})
    for (int const distance : {0, 1, 3}) {
      CAPTURE(in_flight, distance);
      WaveSynchronous const waves{
          .in_flight = in_flight, .distance = distance, .adds = Adds::in_worker_order};
      auto const expected = bounds(waves, minibatches);
      auto const check = [&](auto device_of) {
        sg::collective::ParameterServer const server({.workers = 2});
        auto a = streaming(waves, server, 0, device_of(0));
        auto b = streaming(waves, server, 1, device_of(1));
        REQUIRE(a.staleness() == std::vector<std::uint64_t>(64));
        sg::run_together(a.stream(batch), b.stream(batch));
        for (auto* const train : {&a, &b}) {
          REQUIRE(train->staleness() == histogram(expected));
          REQUIRE(lacked_of(train->timeline(), minibatches) == expected);
        }
      };
      check([](int) { return sg::host::Threads{2}; });
      sg::sim::Clock const clock({.latency_s = 0.5});
      check([&](int n) { return timed(clock, n); });
    }
}

TEST_CASE(
    "train/Trainer: on arrival, waves lack at most what the model lets them lack, and a slow "
    "worker less",
    "[train]") {
  constexpr int minibatches = 40;
  auto const batch = data(minibatches);
  for (int const distance : {0, 2}) {
    WaveSynchronous const waves{.in_flight = 3, .distance = distance, .adds = Adds::on_arrival};
    sg::sim::Clock const clock({.latency_s = 0.5});
    sg::collective::ParameterServer const server({.workers = 2});
    auto fast = streaming(waves, server, 0, timed(clock, 0));
    auto slow = streaming(waves, server, 1, timed(clock, 1));
    sg::run_together(fast.stream(batch), slow.stream(batch));
    auto const most = bounds(waves, minibatches);
    auto const of_fast = lacked_of(fast.timeline(), minibatches);
    auto const of_slow = lacked_of(slow.timeline(), minibatches);
    for (std::size_t m = 0; m < minibatches; ++m) {
      REQUIRE(of_fast[m] >= 0);
      REQUIRE(of_fast[m] <= most[m]);
      REQUIRE(of_slow[m] >= 0);
      REQUIRE(of_slow[m] <= most[m]);
    }
    REQUIRE(fast.staleness() == histogram(of_fast));
    REQUIRE(slow.staleness() == histogram(of_slow));
    // The fast worker waits for the slow one, and gets nothing beyond what it needs.
    REQUIRE(*std::max_element(of_fast.begin(), of_fast.end()) == distance + 1);
    int const all_of_slow = std::accumulate(of_slow.begin(), of_slow.end(), 0);
    int const all_of_fast = std::accumulate(of_fast.begin(), of_fast.end(), 0);
    REQUIRE((distance == 0 ? all_of_slow <= all_of_fast : all_of_slow < all_of_fast));
  }
}

TEST_CASE(
    "train/Trainer: on arrival, steps lack what the server had not added when they were asked "
    "for",
    "[train]") {
  auto const check = [](auto const& model_of_workers) {
    for (double const latency_s : {0.0, 2.5}) {
      sg::sim::Clock const clock({.latency_s = latency_s});
      sg::collective::ParameterServer const server({.workers = 3, .log = true});
      std::vector<decltype(stepping(model_of_workers, server, 0, timed(clock, 0)))> trainers;
      for (int n = 0; n < 3; ++n)
        trainers.push_back(stepping(model_of_workers, server, n, timed(clock, n)));
      train(trainers, steps);
      // What the server noted says the same: all that it had added when a worker took weights.
      using Lacked = std::vector<int>;  // [steps]
      std::vector<std::vector<Lacked>> of(3, std::vector<Lacked>(3, Lacked(steps)));
      for (std::size_t l = 0; l < layers; ++l) {
        std::vector<int> added(3);
        std::vector<int> taken(3);
        for (auto const& event : server.log(l)) {
          auto const n = static_cast<std::size_t>(event.worker);
          if (event.kind == sg::collective::ServerEvent::Kind::added) {
            ++added[n];
            continue;
          }
          auto const step = static_cast<std::size_t>(taken[n]++);
          if (step == steps) continue;  // no step sees them
          for (std::size_t other = 0; other < 3; ++other)
            of[n][other][step] = std::max(of[n][other][step], added[n] - added[other]);
        }
        REQUIRE(taken == std::vector<int>(3, steps + 1));
      }
      int most = 0;
      for (std::size_t n = 0; n < 3; ++n) {
        CAPTURE(n, latency_s);
        Lacked lacked(steps);
        for (std::size_t other = 0; other < 3; ++other) {
          REQUIRE(trainers[n].staleness(static_cast<int>(other)) == histogram(of[n][other]));
          for (std::size_t step = 0; step < steps; ++step)
            lacked[step] = std::max(lacked[step], of[n][other][step]);
        }
        REQUIRE(trainers[n].staleness() == histogram(lacked));
        most = std::max(most, *std::max_element(lacked.begin(), lacked.end()));
        // The timeline of the last step says of which worker, the first of those that lack as much.
        int of_worker = -1;
        for (int other = 2; other >= 0; --other)
          if (int const last = of[n][static_cast<std::size_t>(other)][steps - 1];
              last != 0 && last == lacked[steps - 1])
            of_worker = other;
        auto const timeline = trainers[n].timeline();
        int seen = -1;
        for (auto const& span : timeline.spans)
          if (span.action.kind == Kind::forward && span.lacked == lacked[steps - 1] &&
              span.lacked > 0)
            seen = std::max(seen, static_cast<int>(span.lacked_of));
        REQUIRE(seen == of_worker);
      }
      if constexpr (requires { model_of_workers.bound; }) REQUIRE(most == model_of_workers.bound);
      REQUIRE(most > 0);
    }
  };
  check(sg::staleness::Asynchronous{});
  check(sg::staleness::StaleSynchronous{2});
}

TEST_CASE("train/Trainer: names the workers whose staleness it knows", "[train]") {
  sg::collective::ParameterServer const server({.workers = 3});
  auto const train = stepping(sg::staleness::Asynchronous{}, server, 1, sg::host::Threads{1});
  for (int const worker : {0, 1, 2})
    CHECK(train.staleness(worker) == std::vector<std::uint64_t>(64));
  for (int const worker : {-1, 3})
    CHECK_THROWS_WITH(train.staleness(worker),
                      Catch::Matchers::Contains("has no worker " + std::to_string(worker)) &&
                          Catch::Matchers::Contains("it has 3 workers"));
  CHECK(sg::Pipeline{model()}.with(Loss{}).staleness(0).empty());
}

TEST_CASE("train/Trainer: refuses weights that lack pushes which it had asked for", "[train]") {
  class Behind final : public Forwarding {
   public:
    using Forwarding::Forwarding;
    sg::detail::VersionTag take(std::size_t l, std::uint32_t rounds, std::byte* values,
                                Bytes part) override {
      auto const tag = Forwarding::take(l, rounds, values, part);
      pushes_.assign(tag.pushes.begin(), tag.pushes.end());
      pushes_[1] = std::min(pushes_[1], 2U);
      return {pushes_, tag.worker};
    }

   private:
    std::vector<std::uint32_t> pushes_;
  };
  sg::collective::ParameterServer const server({.workers = 2});
  auto a = sg::Pipeline{model()}.with(
      sg::staleness::Synchronous{},
      sg::collective::ServerWorker(std::make_shared<Behind>(server.worker(0).link())), Loss{}, sgd);
  auto b = stepping(sg::staleness::Synchronous{}, server, 1, sg::host::Threads{1});
  auto const batch = data(2);
  for (int step = 0; step < 2; ++step) sg::run_together(a.step(batch), b.step(batch));
  CHECK_THROWS_WITH(sg::run_together(a.step(batch), b.step(batch)),
                    Catch::Matchers::Contains("worker 0 received weights of layer") &&
                        Catch::Matchers::Contains("with 2 of the 3 pushes of worker 1"));
}

TEST_CASE("train/Trainer: steps together lack nothing, and late layers one push", "[train]") {
  namespace osp = sg::staleness::overlapped;
  auto const check = [](auto const& model_of_workers, int lacks, bool evaluates) {
    sg::collective::ParameterServer const server({.workers = 2});
    auto a = stepping(model_of_workers, server, 0, sg::host::Threads{1});
    auto b = stepping(model_of_workers, server, 1, sg::host::Threads{1});
    auto const batch = data(2);
    for (int step = 0; step < 7; ++step) {
      sg::run_together(a.step(batch), b.step(batch));
      auto const timeline = b.timeline();
      for (auto const& span : timeline.spans)
        if (sg::schedule::is_compute(span.action.kind))
          REQUIRE(span.lacked == (step < 2 ? 0 : lacks));
      if (evaluates) sg::run_together(a.evaluate(batch), b.evaluate(batch));
    }
    std::vector<int> lacked(7, lacks);
    lacked[0] = lacked[1] = 0;  // what is late in step 1, the first that there is, comes in step 2
    REQUIRE(a.staleness() == histogram(lacked));
  };
  check(sg::staleness::Synchronous{}, 0, true);
  check(sg::staleness::LocalSgd{.period = 3}, 0, false);
  using Late = sg::staleness::OverlappedSynchronous<osp::ParameterGradientProduct, osp::FirstFit,
                                                    osp::AllLate>;
  check(Late{}, 1, false);
  check(Late{}, 0, true);  // an evaluation waits for what is late
  auto alone = sg::Pipeline{model()}.with(Loss{});
  REQUIRE(alone.staleness().empty());
}

}  // namespace worker_staleness_test
