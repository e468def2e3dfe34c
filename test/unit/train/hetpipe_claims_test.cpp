// SPDX-License-Identifier: Apache-2.0
// What HetPipe claims of workers that wait for each other, one test for each claim: pipelines with real
// gradients, under a virtual clock.
#include <stagger/sim/clock.hpp>

#include "catch.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <stagger/collective/parameter_server.hpp>
#include <stagger/engine/run_together.hpp>
#include <stagger/partition/cuts.hpp>
#include <stagger/schedule/fifo.hpp>
#include <stagger/sim/virtual_clock.hpp>
#include <stagger/staleness/wave_synchronous.hpp>
#include <stagger/train/pipeline.hpp>

#include "plain_layers.hpp"

namespace sg = stagger;
using namespace plain_layers;
using sg::schedule::Costs;
using sg::schedule::Kind;

namespace {

constexpr int workers = 4, stages = 4, in_flight = 5, minibatches = 200;
constexpr double stage_s = 3;  // of a minibatch

struct Ran {
  double end_s = 0;
  double waiting_s = 0, idle_s = 0;  // of all workers
};

using Interval = std::pair<double, double>;

/// The time that is in one of `a`, or, with `b`, in one of both.
double length(std::vector<Interval> const& a, std::vector<Interval> const* b = nullptr) {
  std::vector<double> times;
  for (auto const* const all : {&a, b})
    if (all != nullptr)
      for (auto const& [from, to] : *all) times.insert(times.end(), {from, to});
  std::sort(times.begin(), times.end());
  auto const in = [](std::vector<Interval> const& all, double at) {
    return std::any_of(all.begin(), all.end(),
                       [&](Interval const& one) { return one.first <= at && at < one.second; });
  };
  double sum = 0;
  for (std::size_t i = 0; i + 1 < times.size(); ++i) {
    double const middle = (times[i] + times[i + 1]) / 2;
    if (in(a, middle) && (b == nullptr || in(*b, middle))) sum += times[i + 1] - times[i];
  }
  return sum;
}

/// HetPipe's four workers of four equal stages; pushes of all of them take four stage times, as do answers.
Ran run_waves(int distance, double jitter, std::uint64_t seed) {
  constexpr double layer_bytes = sizeof(float) * (width * width + width);
  sg::schedule::Links const links{.rate = workers * stages * layer_bytes / (4 * stage_s)};
  sg::sim::Clock const clock(links);
  sg::collective::ParameterServer const server({.workers = workers});
  sg::staleness::WaveSynchronous const model{.in_flight = in_flight, .distance = distance};
  Costs const costs = Costs::uniform(stage_s / 3, stage_s * 2 / 3, 0);
  std::vector<int> const cuts{1, 2, 3};
  sg::schedule::WaveGate const gate{
      .distance = distance,
      .links = {links},
      .layer_bytes = std::vector<std::uint64_t>(stages, static_cast<std::uint64_t>(layer_bytes)),
      .cuts = cuts,
      .others = std::vector<sg::schedule::WaveWorker>(workers - 1, {costs, cuts, {}})};
  auto const make = [&](int n) {
    std::vector<Layer> stack;
    for (int l = 0; l < stages; ++l) stack.emplace_back(l);
    return sg::Pipeline{sg::Sequential{std::move(stack)}}.with(
        sg::partition::Cuts{cuts},
        sg::schedule::Fifo{.in_flight = in_flight, .costs = costs, .gate = gate}, model,
        server.worker(n), Loss{}, sg::optimizer::Sgd{.rate = 0.001},
        sg::sim::VirtualClock{.costs = costs,
                              .jitter = jitter,
                              .seed = 10 * seed + static_cast<std::uint64_t>(n),
                              .clock = clock},
        sg::Options{.record = true});
  };
  std::vector<decltype(make(0))> trainers;
  for (int n = 0; n < workers; ++n) trainers.push_back(make(n));
  auto const batch = data(minibatches);
  std::vector<sg::Step> steps;
  for (auto& trainer : trainers) steps.push_back(trainer.stream(batch));
  static_cast<void>(sg::run_together(std::move(steps)));
  Ran ran{.end_s = clock.now_s()};
  for (auto const& trainer : trainers) {
    auto const timeline = trainer.timeline();
    std::vector<Interval> waits, busy;
    std::vector<double> input(minibatches), before;  // [minibatches] at a stage
    for (std::size_t s = 0; s < stages; ++s) {
      std::vector<double> forward(minibatches), backward(minibatches), pulled(minibatches);
      for (auto const& span : timeline.rows[s]) {
        auto const m = static_cast<std::size_t>(span.action.microbatch);
        if (span.action.kind == Kind::pull) {
          pulled.at(m) = span.end_s;
          continue;
        }
        if (span.action.kind == Kind::push) continue;
        busy.emplace_back(span.start_s, span.end_s);
        (span.action.kind == Kind::forward ? forward : backward).at(m) = span.end_s;
      }
      for (int m = 0; m < minibatches; ++m) {
        auto const i = static_cast<std::size_t>(m);
        double const ready = s > 0 ? before[i] : m < in_flight ? 0 : backward[i - in_flight];
        int const needs = model.needs(m);
        if (m == 0 || needs == model.needs(m - 1)) continue;
        double const opens = pulled.at(static_cast<std::size_t>(needs));
        if (opens > ready) waits.emplace_back(ready, opens);
      }
      before = forward;
    }
    ran.waiting_s += length(waits);
    ran.idle_s += length(waits) - length(waits, &busy);
  }
  return ran;
}

}  // namespace

TEST_CASE("train/HetPipe C17 to C20: waiting falls with D, and little of it is idle", "[train]") {
  std::vector<double> waits, ends;
  for (int const distance : {0, 1, 2, 4, 8}) {
    double waiting = 0, idle = 0, end = 0;
    for (std::uint64_t seed = 1; seed <= 2; ++seed) {
      Ran const ran = run_waves(distance, 0.2, seed);
      waiting += ran.waiting_s;
      idle += ran.idle_s;
      end += ran.end_s;
    }
    CAPTURE(distance, waiting, idle, end);
    CHECK(idle <= 0.35 * waiting + 1e-9);
    waits.push_back(waiting);
    ends.push_back(end);
  }
  CAPTURE(waits, ends);
  CHECK(waits[0] > 0);
  for (std::size_t i = 0; i + 1 < waits.size(); ++i) CHECK(waits[i + 1] <= waits[i] + 1e-9);
  CHECK(waits[3] <= 0.8 * waits[0]);
  CHECK(ends[0] >= 1.05 * ends[3]);  // C17: where an exchange takes a stage time or more
  CHECK(ends[4] == Approx(ends[3]).epsilon(0.15));  // C18
}
