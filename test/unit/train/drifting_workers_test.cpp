// SPDX-License-Identifier: Apache-2.0
#include <stagger/engine/run_together.hpp>

#include "catch.hpp"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <stagger/collective/parameter_server.hpp>
#include <stagger/host/threads.hpp>
#include <stagger/partition/cuts.hpp>
#include <stagger/sim/virtual_clock.hpp>
#include <stagger/staleness/asynchronous.hpp>
#include <stagger/staleness/stale_synchronous.hpp>
#include <stagger/staleness/synchronous.hpp>
#include <stagger/train/pipeline.hpp>

#include "replay.hpp"

namespace drifting_workers_test {

using namespace workers_oracle;
using sg::schedule::Kind;

namespace {

template <class Model, class Device>
auto stepping(Model const& model, sg::collective::ParameterServer const& server, int worker,
              Device device, int fail_at = -1) {
  std::vector<Layer> stack;
  for (int l = 0; l < layers; ++l) stack.emplace_back(l);
  stack.back().fail_at = fail_at;
  return sg::Pipeline{sg::Sequential{std::move(stack)}}.with(
      sg::partition::Cuts{{2}}, model, server.worker(worker), Loss{}, sgd, std::move(device),
      sg::Options{.deadline_s = 60, .record = true});
}

/// Microbatches of a worker's step.
Batch batch_of(std::size_t worker, int step) {
  return data(2, static_cast<double>(worker) + 10.0 * step);
}

/// When a worker's pushes left in each of its steps.
struct Course {
  std::vector<double> pushed_s;
};

/// Carries out `count` steps of each worker.
/// @param ended  called with the worker and the step that has ended
template <class Trainer, class Ended>
void train(std::vector<Trainer>& trainers, int count, Ended ended) {
  std::vector<Batch> batches(trainers.size());
  std::vector<sg::Steps> workers;
  for (std::size_t n = 0; n < trainers.size(); ++n)
    workers.emplace_back([&, n, step = 0](sg::Metrics const* before) mutable {
      if ((before == nullptr) != (step == 0)) throw std::logic_error("a step without metrics");
      if (before != nullptr) ended(n, step - 1);
      if (step == count) return std::optional<sg::Step>{};
      batches[n] = batch_of(n, step++);
      return std::optional(trainers[n].step(batches[n]));
    });
  static_cast<void>(sg::run_together(std::move(workers)));
}

/// The server's part, one push after the other as they arrived: adds each to its weights, and then
/// answers who waits for it and has what the model needs.
/// @param needs   of a step: leading pushes of every worker that its weights contain
/// @return        what each worker has in the end, and the most steps by which one that was
///                answered was ahead of the slowest
template <class Needs>
std::pair<std::vector<std::vector<Numbers>>, int> replay(std::vector<Course> const& courses,
                                                         Needs needs,
                                                         sg::staleness::Pushes pushed) {
  OracleServer<sg::optimizer::Sgd> server{sgd};
  std::vector<OracleWorker<sg::optimizer::Sgd>> workers(courses.size());
  std::vector<std::tuple<double, std::size_t, int>> arrivals;
  for (std::size_t n = 0; n < courses.size(); ++n)
    for (std::size_t m = 0; m < courses[n].pushed_s.size(); ++m)
      arrivals.emplace_back(courses[n].pushed_s[m], n, static_cast<int>(m));
  std::sort(arrivals.begin(), arrivals.end());
  std::vector<std::vector<Numbers>> seen(courses.size(), server.w);
  std::vector<int> pushes(courses.size());
  std::vector<bool> waits(courses.size());
  int lead = 0;
  for (auto const& [at_s, worker, step] : arrivals) {
    REQUIRE(step == pushes[worker]);
    REQUIRE_FALSE(waits[worker]);  // nobody pushes before the answer to the push before
    if (pushed == sg::staleness::Pushes::changes) {
      OracleWorker<sg::optimizer::Sgd>& own = workers[worker];
      own.batch = batch_of(worker, step);
      own.microbatches = own.batch.inputs.size();
      own.train(sgd, seen[worker], 0, step + 1);
      for (std::size_t l = 0; l < layers; ++l) add(server.w[l], own.changes[l].back());
    } else {
      server.step(scaled(gradients(seen[worker], batch_of(worker, step)),
                         1.0F / static_cast<float>(courses.size())));
    }
    ++pushes[worker];
    waits[worker] = true;
    int const slowest = *std::min_element(pushes.begin(), pushes.end());
    for (std::size_t n = 0; n < courses.size(); ++n) {
      if (!waits[n] || slowest < needs(pushes[n])) continue;
      waits[n] = false;
      seen[n] = server.w;
      lead = std::max(lead, pushes[n] - slowest);
    }
  }
  for (bool const waiting : waits) REQUIRE_FALSE(waiting);
  return {seen, lead};
}

/// Trains three workers of which each is slower than the one before, and compares with a replay of
/// what arrived when, and with one of the server's log.
/// @return  the lead of the fastest
template <class Model, class Needs>
int compare(Model const& model, double latency_s, Needs needs, int count = 12) {
  sg::sim::Clock const clock({.latency_s = latency_s});
  sg::collective::ParameterServer const server({.workers = 3, .shards = 2, .log = true});
  auto const make = [&](int n) {
    sg::sim::VirtualClock device;
    device.costs = sg::schedule::Costs::uniform(1 + 1.5 * n, 2, 0);
    device.jitter = 0.1;  // nothing happens at the same moment
    device.seed = static_cast<std::uint64_t>(n);
    device.clock = clock;
    return stepping(model, server, n, device);
  };
  std::vector<decltype(make(0))> trainers;
  for (int n = 0; n < 3; ++n) trainers.push_back(make(n));
  std::vector<Course> courses(3);
  train(trainers, count, [&](std::size_t n, int) {
    auto const timeline = trainers[n].timeline();
    double last_s = 0;
    for (auto const& span : timeline.spans)
      if (span.action.kind == Kind::push) last_s = std::max(last_s, span.start_s);
    courses[n].pushed_s.push_back(last_s);
  });
  auto const [seen, lead] = replay(courses, needs, model.pushes);
  Replay of_log(logs_of(server), 3);
  std::vector<std::vector<Batch>> batches(3);
  for (std::size_t n = 0; n < 3; ++n)
    for (int step = 0; step < count; ++step) batches[n].push_back(batch_of(n, step));
  replay_steps(of_log, sgd, batches, model.pushes);
  for (std::size_t n = 0; n < 3; ++n) {
    REQUIRE(weights(trainers[n]) == seen[n]);
    REQUIRE(of_log.taken(n, static_cast<std::size_t>(count)) == seen[n]);
  }
  return lead;
}

}  // namespace

TEST_CASE(
    "train/run_together: asynchronous workers drift apart in virtual time, with the bits of a "
    "sequential replay",
    "[train]") {
  for (auto const pushes : {sg::staleness::Pushes::gradients, sg::staleness::Pushes::changes})
    for (double const latency_s : {0.0, 2.5})
      REQUIRE(compare(sg::staleness::Asynchronous{pushes}, latency_s, [](int) { return 0; }) > 4);
}

TEST_CASE("train/run_together: stale synchronous workers keep their bound and attain it",
          "[train]") {
  for (double const latency_s : {0.0, 2.5})
    for (int const bound : {0, 1, 3})
      for (auto const pushes : {sg::staleness::Pushes::gradients, sg::staleness::Pushes::changes}) {
        CAPTURE(latency_s, bound);
        REQUIRE(compare(sg::staleness::StaleSynchronous{bound, pushes}, latency_s,
                        [&](int m) { return m - bound; }) == bound);
      }
  // With a bound that nobody reaches, steps are asynchronous.
  REQUIRE(compare(sg::staleness::StaleSynchronous{1000, sg::staleness::Pushes::changes}, 2.5,
                  [](int) { return 0; }) > 4);
}

namespace {

/// A model of the user's: in step for 100 minibatches, then up to `later` behind.
struct LaterBehind {
  using policy_tag = sg::StalenessTag;
  static constexpr bool synchronous = true;  // the stages of one worker end a step together
  static constexpr auto pushes = sg::staleness::Pushes::gradients;  // or changes
  static constexpr auto adds = sg::staleness::Adds::on_arrival;
  int later = 4;
  [[nodiscard]] constexpr int minibatches() const { return 1; }  // in one push
  [[nodiscard]] constexpr int needs(int m) const { return m < 100 ? m : m - later; }
};

}  // namespace

TEST_CASE(
    "train/run_together: a user's own model keeps workers in step for a while, then within its "
    "bound",
    "[train]") {
  LaterBehind const model;
  // The weights of minibatch 99 contain 99 pushes, so those of the next ones do, too.
  auto const needs = [](int m) { return m < 100 ? m : std::max(99, m - 4); };
  REQUIRE(compare(model, 2.5, needs, 99) == 0);
  for (double const latency_s : {0.0, 2.5}) REQUIRE(compare(model, latency_s, needs, 125) == 4);
}

TEST_CASE("train/run_together: in virtual time a step begins when the one before has ended",
          "[train]") {
  // 2 microbatches through 2 equal stages of 3 each: 9 a step, whatever the other worker does.
  sg::sim::Clock const clock;
  sg::collective::ParameterServer const server({.workers = 2});
  auto const make = [&](int n) {
    sg::sim::VirtualClock device;
    device.costs = sg::schedule::Costs::uniform(1 + n * 10, 2, 0);
    device.clock = clock;
    return stepping(sg::staleness::Asynchronous{}, server, n, device);
  };
  std::vector<decltype(make(0))> trainers;
  for (int n = 0; n < 2; ++n) trainers.push_back(make(n));
  std::vector<std::vector<double>> ended_s(2);
  train(trainers, 5, [&](std::size_t n, int) { ended_s[n].push_back(clock.now_s()); });
  REQUIRE(ended_s[0] == std::vector<double>{9, 18, 27, 36, 45});
  REQUIRE(ended_s[1] == std::vector<double>{39, 78, 117, 156, 195});
}

TEST_CASE("train/run_together: on threads each worker takes its steps one after the other",
          "[train]") {
  // Equal weights for any timing: bulk synchronous workers.
  auto const trained = [](bool together) {
    sg::collective::ParameterServer const server({.workers = 3});
    auto const make = [&](int n) {
      return stepping(sg::staleness::Synchronous{}, server, n, sg::host::Threads{2});
    };
    std::vector<decltype(make(0))> trainers;
    for (int n = 0; n < 3; ++n) trainers.push_back(make(n));
    std::vector<int> ended(3);
    if (together) {
      train(trainers, 6, [&](std::size_t n, int) { ++ended[n]; });
      REQUIRE(ended == std::vector<int>{6, 6, 6});
    } else {
      for (int step = 0; step < 6; ++step) {
        std::vector<Batch> batches;
        for (std::size_t n = 0; n < 3; ++n) batches.push_back(batch_of(n, step));
        std::vector<sg::Step> steps;
        for (std::size_t n = 0; n < 3; ++n) steps.push_back(trainers[n].step(batches[n]));
        static_cast<void>(sg::run_together(std::move(steps)));
      }
    }
    return weights(trainers[0]);
  };
  REQUIRE(trained(true) == trained(false));
}

TEST_CASE("train/run_together: a worker that fails in a later step ends the others", "[train]") {
  auto const fails = [](auto device_of) {
    sg::collective::ParameterServer const server({.workers = 2});
    auto const make = [&](int n) {
      return stepping(sg::staleness::StaleSynchronous{1}, server, n, device_of(n), n == 1 ? 2 : -1);
    };
    std::vector<decltype(make(0))> trainers;
    for (int n = 0; n < 2; ++n) trainers.push_back(make(n));
    std::vector<Batch> batches(2);
    std::vector<sg::Steps> workers;
    for (std::size_t n = 0; n < 2; ++n)
      workers.emplace_back([&, n, step = 0](sg::Metrics const*) mutable {
        // The third microbatch of a worker's fourth step fails.
        batches[n] = data(n == 1 && step == 3 ? 3 : 2, step);
        return step++ == 40 ? std::nullopt : std::optional(trainers[n].step(batches[n]));
      });
    REQUIRE_THROWS_WITH(sg::run_together(std::move(workers)),
                        Catch::Matchers::Contains("out of ink"));
    REQUIRE(trainers[1].steps() == 3);
    REQUIRE(trainers[0].steps() <= 5);
  };
  fails([](int) { return sg::host::Threads{2}; });
  sg::sim::Clock const clock;
  fails([&](int) {
    sg::sim::VirtualClock device;
    device.clock = clock;
    return device;
  });
}

TEST_CASE("train/run_together: who cannot make its next step is not waited for", "[train]") {
  using sg::collective::OnFailure;
  auto const fails = [](OnFailure on_failure, int at, auto device_of) {
    sg::collective::ParameterServer const server({.workers = 2, .on_failure = on_failure});
    auto a = stepping(sg::staleness::Synchronous{}, server, 0, device_of());
    auto b = stepping(sg::staleness::Synchronous{}, server, 1, device_of());
    auto const batch = data(2);
    auto const steps_of = [&](auto& worker, int last) {
      return [&worker, &batch, last, step = 0](sg::Metrics const*) mutable {
        if (step == last) throw std::runtime_error("no further data");
        return step++ == 6 ? std::nullopt : std::optional(worker.step(batch));
      };
    };
    CAPTURE(on_failure == OnFailure::go_on, at);
    REQUIRE_THROWS_WITH(sg::run_together(steps_of(a, -1), steps_of(b, at)), "no further data");
    CHECK(b.steps() == at);
    bool const goes_on = on_failure == OnFailure::go_on && at != 0;
    if (goes_on) {
      CHECK(a.steps() == 6);
      return;
    }
    CHECK((a.steps() == at || a.steps() + 1 == at));  // its last step may just have ended
    sg::run_together(a.step(batch), b.step(batch));   // all go on
    CHECK(b.steps() == at + 1);
  };
  for (auto const on_failure : {OnFailure::fail_fast, OnFailure::go_on})
    for (int const at : {0, 1, 3}) {
      fails(on_failure, at, [] { return sg::host::Threads{1}; });
      sg::sim::Clock const clock;
      fails(on_failure, at, [&] {
        sg::sim::VirtualClock device;
        device.clock = clock;
        return device;
      });
    }
}

TEST_CASE("train/run_together: what a worker cannot make ends it alone", "[train]") {
  sg::collective::ParameterServer const server(
      {.workers = 2, .on_failure = sg::collective::OnFailure::go_on});
  auto const make = [&](int n) {
    return stepping(sg::staleness::Asynchronous{}, server, n, sg::host::Threads{1});
  };
  auto a = make(0);
  auto b = make(1);
  auto const batch = data(2);
  int left = 5;
  REQUIRE_THROWS_WITH(sg::run_together(a.step(batch),
                                       [&](sg::Metrics const* before) -> std::optional<sg::Step> {
                                         if (before != nullptr && --left == 2)
                                           throw std::runtime_error("no further data");
                                         return b.step(batch);
                                       }),
                      "no further data");
  REQUIRE(a.steps() == 1);
  REQUIRE(b.steps() == 3);
}

}  // namespace drifting_workers_test
