// SPDX-License-Identifier: Apache-2.0
#include <stagger/sim/clock.hpp>

#include "catch.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <stagger/collective/parameter_server.hpp>
#include <stagger/engine/run_together.hpp>
#include <stagger/host/threads.hpp>
#include <stagger/partition/cuts.hpp>
#include <stagger/schedule/fifo.hpp>
#include <stagger/schedule/play_workers.hpp>
#include <stagger/sim/virtual_clock.hpp>
#include <stagger/staleness/asynchronous.hpp>
#include <stagger/staleness/overlapped_synchronous.hpp>
#include <stagger/staleness/round_robin_synchronous.hpp>
#include <stagger/staleness/stale_synchronous.hpp>
#include <stagger/staleness/synchronous.hpp>
#include <stagger/staleness/wave_synchronous.hpp>
#include <stagger/train/pipeline.hpp>

#include "forwarding_link.hpp"
#include "replay.hpp"

namespace clocked_workers_test {

namespace sg = stagger;
using namespace plain_layers;
namespace schedule = sg::schedule;
using sg::schedule::Costs;
using sg::schedule::Kind;

namespace {

constexpr double layer_bytes = sizeof(float) * (width * width + width);
sg::optimizer::Sgd const sgd{.rate = 0.02, .momentum = 0.9};

/// The same bits for any timing.
sg::staleness::WaveSynchronous exact(int in_flight, int distance) {
  return {
      .in_flight = in_flight, .distance = distance, .adds = sg::staleness::Adds::in_worker_order};
}

template <class Model, class Device>
auto streaming(Model const& model, sg::collective::ParameterServer const& server, int worker,
               std::vector<int> cuts, Device device, int fail_at = -1,
               sg::schedule::WaveGate gate = {}, Costs const& costs = {}) {
  std::vector<Layer> stack;
  for (int l = 0; l < layers; ++l) stack.emplace_back(l);
  stack.back().fail_at = fail_at;
  return sg::Pipeline{sg::Sequential{std::move(stack)}}.with(
      sg::partition::Cuts{std::move(cuts)},
      sg::schedule::Fifo{.in_flight = model.in_flight, .costs = costs, .gate = gate}, model,
      server.worker(worker), Loss{}, sgd, std::move(device), sg::Options{.record = true});
}

sg::sim::VirtualClock on(sg::sim::Clock const& clock, Costs costs = Costs::uniform(1, 2, 0),
                         double jitter = 0, std::uint64_t seed = 0) {
  sg::sim::VirtualClock device;
  device.costs = std::move(costs);
  device.jitter = jitter;
  device.seed = seed;
  device.clock = clock;
  return device;
}

/// Weights of all workers after two streams, on devices of a kind.
template <class Make> std::vector<std::vector<Numbers>> trained(int workers, Make make) {
  std::vector<decltype(make(0))> trainers;
  for (int n = 0; n < workers; ++n) trainers.push_back(make(n));
  for (int stream = 0; stream < 2; ++stream) {
    std::vector<Batch> batches;
    for (int n = 0; n < workers; ++n) batches.push_back(data(13, n + 10.0 * stream));
    std::vector<sg::Step> steps;
    for (std::size_t n = 0; n < trainers.size(); ++n)
      steps.push_back(trainers[n].stream(batches[n]));
    static_cast<void>(sg::run_together(std::move(steps)));
  }
  std::vector<std::vector<Numbers>> all;
  for (auto& trainer : trainers) all.push_back(weights(trainer));
  return all;
}

template <class Trainer> double end_s(Trainer const& trainer) {
  double last = 0;
  for (auto const& span : trainer.timeline().spans) last = std::max(last, span.end_s);
  return last;
}

std::vector<std::vector<int>> const cuts{{2}, {1}, {1, 2, 3}, {}};
std::vector<int> const quarters{1, 2, 3};

}  // namespace

namespace {

/// Every number of workers, of minibatches in flight, of waves ahead, of stages for each worker,
/// over links of several kinds, with costs that vary and without.
/// @param check  (waves, minibatches, device_of, rotation, link), where device_of makes the device of a
///               worker
template <class Check> void sweep_clocks(Sweep sweep, Check check) {
  std::vector<sg::sim::Links> const links{
      {},
      {.rate = 100, .latency_s = 0.5},
      {.rate = 60, .loss = 0.5, .sharing = sg::sim::Sharing::fifo, .duplex = sg::sim::Duplex::half},
      {.latency_s = 7, .sharing = sg::sim::Sharing::one_at_a_time}};
  for (int const workers : {1, 2, 3, 4})
    for (int const in_flight : {1, 2, 4, 5})
      for (int const distance : {0, 1, 3})
        for (int const rotation : {0, 1, 2, 3})
          for (int const minibatches : {1, 13, 33})
            for (auto const& link : links)
              for (double const jitter : {0.0, 0.5}) {
                if (!sweep.takes()) continue;
                CAPTURE(distance, rotation, jitter, link.rate, link.latency_s);
                sg::sim::Clock const clock(link);
                check(
                    workers_oracle::Waves{workers, in_flight, distance}, minibatches,
                    [&](int n) {
                      return on(clock, Costs::uniform(1 + n, 2, 0.5), jitter,
                                static_cast<std::uint64_t>(n));
                    },
                    rotation, link);
              }
}

}  // namespace

TEST_CASE("train/Clock: workers in virtual time have the bits of a sequential loop", "[train]") {
  using namespace workers_oracle;
  sweep_clocks(
      Sweep(7), [](Waves const& waves, int minibatches, auto device_of, int rotation, auto&) {
        sg::collective::ParameterServer const server({.workers = waves.workers, .shards = 2});
        compare_streams(waves, all_of(waves.workers), minibatches, adam, [&](int n) {
          return make_on(device_of(n), waves, server, n, cuts_of(n, rotation), adam);
        });
      });
}

TEST_CASE("train/Clock: carried out again, the server's log gives the bits of waves on arrival",
          "[train]") {
  using namespace workers_oracle;
  sweep_clocks(Sweep(5), [](Waves const& waves, int minibatches, auto device_of, int rotation,
                            auto const&) {
    sg::collective::ParameterServer const server(
        {.workers = waves.workers, .shards = 2, .log = true});
    replay_waves(
        waves, all_of(waves.workers), minibatches, adam, [&] { return logs_of(server); }, all_here,
        [&](int n, auto& seen) {
          return make_noting(waves, server.worker(n), cuts_of(n, rotation), device_of(n), adam,
                             seen);
        });
  });
}

TEST_CASE("train/Clock: carried out again, the server's log gives the bits of steps on arrival",
          "[train]") {
  using namespace workers_oracle;
  for (int const workers : {1, 2, 3, 4})
    for (int const rotation : {0, 1, 2, 3})
      for (double const latency_s : {0.0, 2.5}) {
        auto const replay = [&](auto const& model) {
          sg::sim::Clock const clock({.rate = 100, .latency_s = latency_s});
          sg::collective::ParameterServer const server(
              {.workers = workers, .shards = 2, .log = true});
          replay_drifting(
              model.pushes, workers, all_of(workers), [&] { return logs_of(server); },
              [&](int n) {
                return stepping_on(
                    on(clock, Costs::uniform(1 + n, 2, 0.5), 0.5, static_cast<std::uint64_t>(n)),
                    model, server, n, adam, cuts_of(n, rotation));
              });
        };
        using sg::staleness::Pushes;
        for (auto const pushes : {Pushes::gradients, Pushes::changes}) {
          replay(sg::staleness::Asynchronous{pushes});
          replay(sg::staleness::StaleSynchronous{1, pushes});
        }
        replay(sg::staleness::RoundRobinSynchronous{});
      }
}

TEST_CASE("train/Clock: steps of workers have the bits of workers on threads", "[train]") {
  auto const compare = [](auto const& model, bool on_threads) {
    std::vector<std::vector<std::vector<Numbers>>> results;
    auto const train = [&](auto device_of) {
      sg::collective::ParameterServer const server({.workers = 3, .shards = 2});
      auto const make = [&](int n) {
        std::vector<Layer> stack;
        for (int l = 0; l < layers; ++l) stack.emplace_back(l);
        return sg::Pipeline{sg::Sequential{std::move(stack)}}.with(
            sg::partition::Cuts{cuts[static_cast<std::size_t>(n)]}, model, server.worker(n), Loss{},
            sgd, device_of(n));
      };
      std::vector<decltype(make(0))> trainers;
      for (int n = 0; n < 3; ++n) trainers.push_back(make(n));
      for (int step = 0; step < 5; ++step) {
        std::vector<Batch> batches;
        for (int n = 0; n < 3; ++n) batches.push_back(data(2, n + 10.0 * step));
        std::vector<sg::Step> steps;
        for (std::size_t n = 0; n < 3; ++n) steps.push_back(trainers[n].step(batches[n]));
        static_cast<void>(sg::run_together(std::move(steps)));
      }
      results.emplace_back();
      for (auto& trainer : trainers) results.back().push_back(weights(trainer));
    };
    sg::sim::Clock const reference;
    on_threads ? train([](int) { return sg::host::Threads{2}; })
               : train([&](int) { return on(reference); });
    for (sg::sim::Links const link :
         {sg::sim::Links{}, sg::sim::Links{.rate = 80, .latency_s = 3}}) {
      sg::sim::Clock const clock(link);
      train([&](int n) { return on(clock, Costs::uniform(3 - n, 2, 0), 0.3, 5); });
      REQUIRE(results.back() == results.front());
    }
  };
  compare(sg::staleness::Synchronous{}, true);
  using sg::staleness::Adds;
  using sg::staleness::Pushes;
  compare(sg::staleness::StaleSynchronous{2, Pushes::changes, Adds::in_worker_order}, true);
  // On threads, a worker may begin its first step when another has pushed already.
  compare(sg::staleness::RoundRobinSynchronous{}, false);
}

TEST_CASE("train/Clock: on arrival, an answer holds what the server had when it left", "[train]") {
  // One worker's own pushes are in what it asks for behind them, however long they travel.
  for (double const latency_s : {0.0, 2.0}) {
    sg::sim::Clock const clock({.latency_s = latency_s});
    sg::collective::ParameterServer const server({.workers = 1});
    sg::collective::ParameterServer const threads({.workers = 1});
    auto const make = [&](auto const& from, auto device) {
      return sg::Pipeline{Layer(0), Layer(1)}.with(sg::staleness::Asynchronous{}, from.worker(0),
                                                   Loss{}, sgd, device);
    };
    auto a = make(server, on(clock));
    auto b = make(threads, sg::host::Threads{2});
    for (int step = 0; step < 4; ++step) {
      auto const batch = data(3, step);
      static_cast<void>(run(a.step(batch)));
      static_cast<void>(run(b.step(batch)));
      REQUIRE(weights(a) == weights(b));
    }
    // Two stages, of which the first ends last: 3 microbatches through stages of 3 each, and twice
    // the latency.
    REQUIRE(clock.now_s() == Approx(4 * (12 + 2 * latency_s)));
  }
}

TEST_CASE("train/Clock: waves that are added on arrival end alike everywhere, and every time",
          "[train]") {
  for (int const distance : {0, 1, 3}) {
    std::vector<std::vector<std::vector<Numbers>>> results;
    for (int repeat = 0; repeat < 2; ++repeat) {
      sg::sim::Clock const clock({.rate = 30, .latency_s = 2});
      sg::collective::ParameterServer const server({.workers = 3});
      sg::staleness::WaveSynchronous const model{.in_flight = 3, .distance = distance};
      results.push_back(trained(3, [&](int n) {
        return streaming(model, server, n, cuts[static_cast<std::size_t>(n)],
                         on(clock, Costs::uniform(1 + n, 2, 0), 0.5, 7));
      }));
      for (auto const& worker : results.back()) REQUIRE(worker == results.back().front());
    }
    REQUIRE(results[0] == results[1]);
  }
}

TEST_CASE("train/Clock: the same seeds give the same times, and pushes and pulls are in them",
          "[train]") {
  std::vector<double> ends;
  for (int repeat = 0; repeat < 2; ++repeat) {
    sg::sim::Clock const clock({.rate = 200, .latency_s = 0.25});
    sg::collective::ParameterServer const server({.workers = 2});
    auto a = streaming(exact(2, 0), server, 0, {2}, on(clock, Costs::uniform(1, 2, 0), 0.3, 1));
    auto b = streaming(exact(2, 0), server, 1, {2}, on(clock, Costs::uniform(1, 2, 0), 0.3, 2));
    auto const batch = data(8);
    static_cast<void>(sg::run_together(a.stream(batch), b.stream(batch)));
    ends.push_back(clock.now_s());
    auto const timeline = a.timeline();
    for (int r = 0; r < timeline.ranks(); ++r) {
      auto const row = timeline.row(r);
      auto const count = [&](Kind kind) {
        return std::count_if(row.begin(), row.end(),
                             [&](auto const& span) { return span.action.kind == kind; });
      };
      REQUIRE(count(Kind::push) == 4);
      REQUIRE(count(Kind::pull) == 4);
      // Each takes its bytes, over a link that is shared, and the latency; an answer with a wave
      // leaves behind the push of it.
      double pushed_s = 0;
      for (auto const& span : row) {
        if (span.action.kind == Kind::push && span.action.microbatch == 0) pushed_s = span.end_s;
        if (span.action.kind == Kind::pull && span.action.microbatch == 1)
          REQUIRE(span.start_s >= pushed_s);
        if (!schedule::travels(span.action.kind)) continue;
        REQUIRE(span.end_s - span.start_s >= (0.25 + 2 * layer_bytes / 200) * (1 - 1e-12));
        REQUIRE(span.end_s - span.start_s <= 0.25 + 8 * layer_bytes / 200);
      }
      REQUIRE(pushed_s > 0);
    }
  }
  REQUIRE(ends[0] == ends[1]);
}

TEST_CASE("train/Clock: the time of one wave behind another is what its parts take", "[train]") {
  // One stage, Nm = 1: a minibatch, its push, the answer, the next one.
  sg::sim::Clock const clock({.rate = layer_bytes * layers / 2, .latency_s = 0.25});
  sg::collective::ParameterServer const server({.workers = 1});
  auto a = streaming(exact(1, 0), server, 0, {}, on(clock));
  static_cast<void>(run(a.stream(data(5))));
  auto const timeline = a.timeline();
  for (auto const& span : timeline.row(0)) {
    double const begin_s =
        7.5 * (span.action.microbatch - (span.action.kind == Kind::pull ? 1 : 0));
    if (schedule::travels(span.action.kind)) REQUIRE(span.end_s - span.start_s == Approx(2.25));
    if (span.action.kind == Kind::push) REQUIRE(span.start_s == Approx(begin_s + 3));
    if (span.action.kind == Kind::pull) REQUIRE(span.start_s == Approx(begin_s + 5.25));
  }
  REQUIRE(clock.now_s() == Approx(5 * (3 + 2 * 2.25)));
  static_cast<void>(run(a.stream(data(1))));  // the clock goes on
  REQUIRE(clock.now_s() == Approx(6 * (3 + 2 * 2.25)));
}

TEST_CASE("train/Clock: equal workers share the link of a server", "[train]") {
  for (int const workers : {1, 3}) {
    sg::sim::Clock const clock({.rate = layer_bytes * layers});
    sg::collective::ParameterServer const server({.workers = workers});
    std::vector<decltype(streaming(exact(1, 0), server, 0, {}, on(clock)))> trainers;
    for (int n = 0; n < workers; ++n)
      trainers.push_back(streaming(exact(1, 0), server, n, {}, on(clock)));
    auto const batch = data(5);
    std::vector<sg::Step> steps;
    for (auto& trainer : trainers) steps.push_back(trainer.stream(batch));
    static_cast<void>(sg::run_together(std::move(steps)));
    REQUIRE(clock.now_s() == Approx(5 * (3 + 2 * workers)));  // T_c + 2c
  }
}

TEST_CASE(
    "train/Clock: HetPipe's four workers lose a part of their time in the order of Fifo, and "
    "nothing "
    "in one that knows of the gate",
    "[train]") {
  auto const makespan = [](sg::schedule::WaveGate gate) {
    sg::sim::Clock const clock({.latency_s = 4.5});
    sg::collective::ParameterServer const server({.workers = 4});
    auto const device = on(clock, Costs::uniform(1, 2, 0));
    auto const worker = [&](int n) {
      return streaming(exact(5, 0), server, n, quarters, device, -1, gate, device.costs);
    };
    std::vector<decltype(worker(0))> trainers;
    for (int n = 0; n < 4; ++n) trainers.push_back(worker(n));
    auto const batch = data(400);
    std::vector<sg::Step> steps;
    for (auto& trainer : trainers) steps.push_back(trainer.stream(batch));
    static_cast<void>(sg::run_together(std::move(steps)));
    // A minibatch takes a stage 3 s; behind the last one there are a push and an answer.
    return (clock.now_s() - 9) / 3;
  };
  CHECK(makespan({}) == Approx(639).margin(1));
  CHECK(makespan({.model = exact(5, 0), .links = {{.latency_s = 4.5}}}) == Approx(561));
}

namespace {

/// A user's waves: in every other three of them workers may drift further apart.
struct Loosening {
  using policy_tag = sg::StalenessTag;
  static constexpr bool synchronous = false;
  static constexpr auto pushes = sg::staleness::Pushes::changes;
  static constexpr auto adds = sg::staleness::Adds::in_worker_order;
  int in_flight = 3;
  int looser = 2;  // waves
  int microbatches() const { return 1; }
  int minibatches() const { return in_flight; }
  int version(int m, int) const { return std::max(0, m + 1 - in_flight); }
  int needs(int m) const {
    int const waves = (m + 1) / in_flight - 1;
    return waves - (waves / 3 % 2 == 0 ? 0 : looser);
  }
};
struct Loose {
  static constexpr int workers = 3, in_flight = 3;
  Loosening model() const { return {}; }
  std::size_t needed(std::size_t m) const {  // 0, 1, 2, 2, 2, 3, 6, 7, 8, 8, 8, 9, ...
    std::size_t const waves = (m + 1) / 3 - (m < 2 ? 0 : 1);
    return waves % 6 < 3 ? waves : waves / 6 * 6 + (waves % 6 == 5 ? 3 : 2);
  }
};

}  // namespace

TEST_CASE(
    "train/Clock: unequal workers on a shared link end when the play says from which they have "
    "their orders, with the bits of a sequential loop",
    "[train]") {
  std::vector<sg::schedule::WaveWorker> workers;
  for (int n = 0; n < 3; ++n) {
    auto const& own = cuts[static_cast<std::size_t>(n)];
    sg::schedule::WaveWorker worker{.cuts = own};
    for (std::size_t s = 0; s <= own.size(); ++s)  // no two events at one time
      worker.costs.stages.push_back({.forward_s = 1.1 + 0.237 * n,
                                     .backward_input_s = 2.03 + 0.0917 * static_cast<double>(s),
                                     .backward_weight_s = 0,
                                     .transfer_s = 0.0613});
    workers.push_back(std::move(worker));
  }
  sg::schedule::Links const links{.rate = 90, .latency_s = 0.25};
  std::vector<std::uint64_t> const bytes(layers, static_cast<std::uint64_t>(layer_bytes));
  auto const check = [&](auto const& waves) {
    auto const train = [&](auto device_of) {
      sg::collective::ParameterServer const server({.workers = 3});
      workers_oracle::compare_streams(
          waves, {0, 1, 2}, 31, sgd,
          [&](int n) {
            auto const& own = workers[static_cast<std::size_t>(n)];
            sg::schedule::WaveGate gate{
                .model = waves.model(), .links = {links}, .layer_bytes = bytes, .cuts = own.cuts};
            for (int other = 0; other < 3; ++other)
              if (other != n) gate.others.push_back(workers[static_cast<std::size_t>(other)]);
            return workers_oracle::make_by(
                sg::schedule::Fifo{.in_flight = 3, .costs = own.costs, .gate = gate}, device_of(n),
                waves, server, n, own.cuts, sgd);
          },
          false);
    };
    train([](int) { return sg::host::Threads{2}; });
    sg::sim::Clock const clock(links);
    train([&](int n) { return on(clock, workers[static_cast<std::size_t>(n)].costs); });
    double end_s = 0;
    for (auto const& played : sg::schedule::play_workers(
             workers,
             {.in_flight = 3, .model = waves.model(), .layer_bytes = bytes, .links = {links}}, 31))
      end_s = std::max(end_s, played.end_s);
    // A stage asks for a round when it comes to the minibatch that takes one, which may be before
    // the minibatch's input is there.
    REQUIRE(clock.now_s() == Approx(2 * end_s).epsilon(0.01));
  };
  check(workers_oracle::Waves{3, 3, 0});
  check(workers_oracle::Waves{3, 3, 1});
  check(Loose{});
}

TEST_CASE(
    "train/Clock: a slow worker stops the others after D + 1 waves and Nm - 1 minibatches, and no "
    "sooner",
    "[train]") {
  for (int const in_flight : {1, 2, 4})
    for (int const distance : {0, 1, 3}) {
      CAPTURE(in_flight, distance);
      auto const model = exact(in_flight, distance);
      sg::sim::Clock const clock;
      sg::collective::ParameterServer const server({.workers = 3});
      auto slow = streaming(model, server, 0, {2}, on(clock, Costs::uniform(10, 20, 0)));
      auto a = streaming(model, server, 1, {2}, on(clock));
      auto b = streaming(model, server, 2, {1, 3}, on(clock));
      auto const batch = data(in_flight * 12);
      static_cast<void>(sg::run_together(slow.stream(batch), a.stream(batch), b.stream(batch)));
      std::vector<double> pushes;  // of the slow one's first stage
      auto const of_slow = slow.timeline();
      for (auto const& span : of_slow.row(0))
        if (span.action.kind == Kind::push) pushes.push_back(span.end_s);
      int most = 0;  // minibatches begun beyond what the slow one has pushed
      for (auto* const fast : {&a, &b}) {
        auto const timeline = fast->timeline();
        for (auto const& span : timeline.row(0)) {
          if (span.action.kind != Kind::forward) continue;
          auto const pushed = std::count_if(pushes.begin(), pushes.end(),
                                            [&](double at) { return at <= span.start_s; });
          most = std::max(most, span.action.microbatch + 1 - static_cast<int>(pushed) * in_flight);
        }
      }
      REQUIRE(most == (distance + 1) * in_flight + in_flight - 1);
    }
}

TEST_CASE("train/Clock: a worker whom nobody answers says for whom it waits", "[train]") {
  sg::sim::Clock const clock({.latency_s = 1});
  sg::collective::ParameterServer const server({.workers = 2});
  auto a = streaming(exact(2, 0), server, 0, {2}, on(clock));
  auto b = streaming(exact(2, 0), server, 1, {2}, on(clock));
  REQUIRE_THROWS_WITH(run(a.stream(data(8))),
                      Catch::Matchers::Contains("worker 1, which has made 0 pushes"));
  auto const batch = data(4);
  static_cast<void>(sg::run_together(a.stream(batch), b.stream(batch)));
  REQUIRE(weights(a) == weights(b));
}

namespace {

/// A server that never says which layers are late, but for the first step.
class NoChoice final : public Forwarding {
 public:
  using Forwarding::Forwarding;
  void ask_late(std::uint32_t step) override {
    if (step == 0) Forwarding::ask_late(step);
  }
  [[nodiscard]] std::string waits_for() const override { return "the choice of the server"; }
};

template <class Model, class Server>
auto stepping(Model const& model, Server const& server, int worker, sg::sim::VirtualClock device) {
  return workers_oracle::stepping_on(std::move(device), model, server, worker, sgd, {2});
}

}  // namespace

TEST_CASE("train/Clock: the sentence of a stall names pushes and pulls, and who is waited for",
          "[train]") {
  sg::sim::Clock const clock({.latency_s = 1});
  auto const batch = data(2);
  SECTION("pulls at the end of a step") {
    sg::collective::ParameterServer const server({.workers = 2});
    auto a = stepping(sg::staleness::Synchronous{}, server, 0, on(clock));
    auto b = stepping(sg::staleness::Synchronous{}, server, 1, on(clock));
    REQUIRE_THROWS_WITH(run(a.step(batch)),
                        "the ranks wait for each other: rank 0 waits before 0PULL0 for worker 1, "
                        "which has made 0 pushes; rank 1 waits before 1PULL0 for worker 1, which "
                        "has made 0 pushes");
  }
  SECTION("pulls of a worker that waits for its turn to push") {
    sg::collective::ParameterServer const server({.workers = 2});
    auto a = stepping(sg::staleness::RoundRobinSynchronous{}, server, 0, on(clock));
    auto b = stepping(sg::staleness::RoundRobinSynchronous{}, server, 1, on(clock));
    REQUIRE_THROWS_WITH(run(b.step(batch)),
                        Catch::Matchers::Contains("rank 0 waits before 0PULL0 for worker 0, which "
                                                  "has made 0 pushes"));
  }
  SECTION("pulls within a stream, of a number of waves") {
    sg::collective::ParameterServer const server({.workers = 2});
    auto a = streaming(exact(2, 1), server, 0, {2}, on(clock));
    auto b = streaming(exact(2, 1), server, 1, {2}, on(clock));
    REQUIRE_THROWS_WITH(run(a.stream(data(12))),
                        Catch::Matchers::Contains("rank 0 waits before 0PULL1 for worker 1, which "
                                                  "has made 0 pushes"));
  }
  SECTION("pushes behind late values") {
    sg::collective::ParameterServer const server({.workers = 1});
    auto train = stepping(
        sg::staleness::OverlappedSynchronous<sg::staleness::overlapped::ParameterGradientProduct,
                                             sg::staleness::overlapped::FirstFit,
                                             sg::staleness::overlapped::ShareLate>{.budget = {0.5}},
        Through{std::make_shared<NoChoice>(server.worker(0).link())}, 0, on(clock));
    static_cast<void>(run(train.step(batch)));
    REQUIRE_THROWS_WITH(
        run(train.step(batch)),
        "the ranks wait for each other: rank 0 waits before 0PUSH0 for the choice of the server; "
        "rank 1 waits before 1PUSH0 for the choice of the server");
  }
}

TEST_CASE("train/Clock: a worker that fails ends the others, and the next streams go on",
          "[train]") {
  sg::sim::Clock const clock({.rate = 100, .latency_s = 1});
  sg::collective::ParameterServer const server({.workers = 3});
  auto a = streaming(exact(2, 1), server, 0, {2}, on(clock));
  auto b = streaming(exact(2, 1), server, 1, {1}, on(clock), 7);
  auto c = streaming(exact(2, 1), server, 2, {}, on(clock));
  auto const batch = data(12);
  REQUIRE_THROWS_WITH(sg::run_together(a.stream(batch), b.stream(batch), c.stream(batch)),
                      "out of ink");
  auto const short_batch = data(6);
  static_cast<void>(
      sg::run_together(a.stream(short_batch), b.stream(short_batch), c.stream(short_batch)));
  REQUIRE(weights(a) == weights(b));
  REQUIRE(weights(a) == weights(c));
}

TEST_CASE("train/Clock: refuses workers in different times", "[train]") {
  sg::sim::Clock const clock;
  sg::collective::ParameterServer const server({.workers = 2});
  REQUIRE_THROWS_WITH(streaming(exact(2, 0), server, 0, {2}, sg::sim::VirtualClock{}),
                      Catch::Matchers::Contains("VirtualClock::clock"));
  auto const a = streaming(exact(2, 0), server, 0, {2}, on(clock));
  REQUIRE_THROWS_WITH(streaming(exact(2, 0), server, 1, {2}, sg::host::Threads{1}),
                      Catch::Matchers::Contains("in another time"));
  REQUIRE_THROWS_WITH(streaming(exact(2, 0), server, 1, {2}, on(sg::sim::Clock())),
                      Catch::Matchers::Contains("in another time"));
}

}  // namespace clocked_workers_test
