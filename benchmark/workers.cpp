// SPDX-License-Identifier: Apache-2.0
// Workers that train one model through a parameter server in their process.
//
//   server       two workers, each on a thread of its own, push and pull a model of 64 MiB in four
//                layers and four shards, in the order of workers; compared with copies of the
//                bytes that this must touch (5 x 64 MiB for each worker), made by two threads at once
//   small        16 workers on two threads push layers of 4 KiB on arrival
//   gate         how long after the last push that it waits for a worker begins its next forward
//   clock        four unequal workers of four stages carry 10 000 minibatches each through layers that
//                do nothing, in virtual time, with pushes and pulls over a shared link
//   tables       the orders of those workers, each from a play of all of them

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include <stagger/collective/parameter_server.hpp>
#include <stagger/engine/run_together.hpp>
#include <stagger/schedule/fifo.hpp>
#include <stagger/sim/virtual_clock.hpp>
#include <stagger/stagger.hpp>
#include <stagger/staleness/wave_synchronous.hpp>

#include "support/rows.hpp"
#include "support/server_workers.hpp"

namespace {

namespace sg = stagger;

constexpr std::size_t model_bytes = std::size_t{64} << 20U;
constexpr std::size_t shards = 4;
constexpr int touched = 5;  // times 64 MiB, for each worker

/// Seconds for a push and a pull of the whole model by two workers at once.
void exchange(benchmark::State& state) {
  constexpr int workers = 2;
  constexpr int rounds = 6;
  sg::collective::ParameterServer const server({.workers = workers, .shards = shards});
  auto const model = layers(shards, model_bytes / shards / sizeof(float));
  std::vector<std::vector<float>> changes(workers, std::vector<float>(model_bytes / 4, 1.0F));
  std::vector<std::vector<float>> values = changes;
  std::vector<Waiting> waiting(workers);
  std::vector<std::shared_ptr<sg::detail::ParameterLink>> links;
  for (int n = 0; n < workers; ++n) {
    links.push_back(server.worker(n).link());
    links.back()->join(model, rules(sg::staleness::Adds::in_worker_order),
                       waiting[static_cast<std::size_t>(n)]);
    links.back()->begin();
  }
  std::vector<double> took(rounds);
  std::barrier together(workers);
  auto const work = [&](int n) {
    auto const w = static_cast<std::size_t>(n);
    auto& link = *links[w];
    std::size_t const floats = model_bytes / shards / sizeof(float);
    for (std::size_t l = 0; l < shards; ++l)
      link.read(l, reinterpret_cast<std::byte*>(values[w].data() + l * floats));
    for (std::uint32_t round = 1; round <= rounds; ++round) {
      together.arrive_and_wait();
      double const start_s = bench::now_s();
      for (std::size_t l = 0; l < shards; ++l) {
        link.push(l, reinterpret_cast<std::byte const*>(changes[w].data() + l * floats), false);
        link.ask(l, round);
      }
      waiting[w].wait_for(round * shards);
      for (std::size_t l = 0; l < shards; ++l)
        link.take(l, round, reinterpret_cast<std::byte*>(values[w].data() + l * floats));
      together.arrive_and_wait();
      if (n == 0) took[round - 1] = bench::now_s() - start_s;
    }
  };
  for ([[maybe_unused]] auto _ : state) {
    std::thread other([&] { work(1); });
    work(0);
    other.join();
    took.erase(took.begin());  // which makes the memory
    state.SetIterationTime(bench::median(took));
    std::vector<double> copies;
    for (int i = 0; i < rounds; ++i) {
      auto const copy = [&](std::size_t w) {
        together.arrive_and_wait();
        for (int k = 0; k < touched; ++k)  // in parts, one read and one written for each byte
          std::memcpy(values[w].data(), changes[1 - w].data(), model_bytes);
        together.arrive_and_wait();
      };
      std::thread second([&] { copy(1); });
      double const start_s = bench::now_s();
      copy(0);
      second.join();
      copies.push_back(bench::now_s() - start_s);
    }
    state.counters["of_copy"] = bench::median(copies) / bench::median(took);
  }
}

/// Pushes a second of 16 workers on two threads, and the time of the slowest hundredth.
void small(benchmark::State& state) {
  constexpr int workers = 16;
  constexpr int each = 20000;
  constexpr std::size_t floats = 1024;
  sg::collective::ParameterServer const server({.workers = workers, .shards = 4});
  auto const model = layers(4, floats);
  std::vector<Waiting> waiting(workers);
  std::vector<float> const change(floats, 1.0F);
  std::vector<std::vector<float>> took(2);
  std::vector<std::shared_ptr<sg::detail::ParameterLink>> links;
  for (int n = 0; n < workers; ++n) {
    links.push_back(server.worker(n).link());
    links.back()->join(model, rules(sg::staleness::Adds::on_arrival),
                       waiting[static_cast<std::size_t>(n)]);
    links.back()->begin();
  }
  std::barrier together(2);
  auto const work = [&](int thread) {
    auto& own = took[static_cast<std::size_t>(thread)];
    own.reserve(each * workers / 2);
    together.arrive_and_wait();
    for (int i = 0; i < each; ++i)
      for (int n = thread; n < workers; n += 2) {
        double const start_s = bench::now_s();
        links[static_cast<std::size_t>(n)]->push(static_cast<std::size_t>(n + i) % 4,
                                                 reinterpret_cast<std::byte const*>(change.data()),
                                                 false);
        own.push_back(static_cast<float>(bench::now_s() - start_s));
      }
    together.arrive_and_wait();
  };
  for ([[maybe_unused]] auto _ : state) {
    std::thread other([&] { work(1); });
    double const start_s = bench::now_s();
    work(0);
    double const all_s = bench::now_s() - start_s;
    other.join();
    took[0].insert(took[0].end(), took[1].begin(), took[1].end());
    std::sort(took[0].begin(), took[0].end());
    state.SetIterationTime(all_s);
    state.counters["a_second"] = double{workers} * each / all_s;
    state.counters["p99_us"] = 1e6 * static_cast<double>(took[0][took[0].size() * 99 / 100]);
  }
}

/// Tells when its forward begins, and lets one wait.
struct Timed {
  using Input = float;
  using Output = float;
  std::vector<double>* forward_s = nullptr;
  std::vector<double>* backward_s = nullptr;
  std::chrono::microseconds backward_takes{0};
  sg::Parameter<> a{"a", {1}};
  auto parameters() { return std::tie(a); }
  void forward(sg::Context& c, float const& x, float& y, sg::NothingSaved&) {
    if (forward_s != nullptr) forward_s->push_back(bench::now_s());
    y = c[a][0] * x;
  }
  void backward(sg::Context& c, float const& x, float const& dy, float& dx, sg::NothingSaved&) {
    std::this_thread::sleep_for(backward_takes);
    dx = c[a][0] * dy;
    c.gradient(a)[0] += dy * x;
    if (backward_s != nullptr) backward_s->push_back(bench::now_s());
  }
};

struct Sum {
  using policy_tag = sg::LossTag;
  using Target = float;
  double terms(float const&) const { return 1; }
  double value(sg::Context&, float const& y, float const&) const { return static_cast<double>(y); }
  double value_and_gradient(sg::Context&, float const& y, float const&, double, float& dy) const {
    dy = 0.001F;
    return static_cast<double>(y);
  }
};

/// A fast worker waits in each minibatch for a slow one, whose backward sleeps, and so its push, ends
/// at a known time.
void gate(benchmark::State& state, std::chrono::milliseconds shut, std::size_t minibatches) {
  std::vector<double> pushed_s, begun_s;
  sg::collective::ParameterServer const server({.workers = 2});
  sg::staleness::WaveSynchronous const in_step{
      .in_flight = 1, .distance = 0, .adds = sg::staleness::Adds::in_worker_order};
  auto const make = [&](int worker, Timed layer) {
    return sg::Pipeline{layer}.with(sg::schedule::Fifo{1}, in_step, server.worker(worker), Sum{},
                                    sg::host::Threads{1});
  };
  auto fast = make(0, {.forward_s = &begun_s});
  auto slow = make(1, {.backward_s = &pushed_s, .backward_takes = shut});
  sg::Batch<float, float> batch;
  batch.inputs.assign(minibatches, 1.0F);
  batch.targets.assign(minibatches, 1.0F);
  for ([[maybe_unused]] auto _ : state) {
    pushed_s.clear();
    begun_s.clear();
    double const start_s = bench::now_s();
    std::clock_t const used = std::clock();
    sg::run_together(fast.stream(batch), slow.stream(batch));
    double const used_s = static_cast<double>(std::clock() - used) / CLOCKS_PER_SEC;
    state.counters["core"] = used_s / (bench::now_s() - start_s);
    std::vector<double> opened;
    for (std::size_t m = 1; m < minibatches; ++m) opened.push_back(begun_s[m] - pushed_s[m - 1]);
    state.SetIterationTime(bench::median(opened));
  }
}

/// Does nothing, as does its backward.
struct Empty {
  using Input = float;
  using Output = float;
  sg::Parameter<> a{"a", {1}};
  auto parameters() { return std::tie(a); }
  void forward(sg::Context&, float const& x, float& y, sg::NothingSaved&) { y = x; }
  void backward(sg::Context&, float const&, float const& dy, float& dx, sg::NothingSaved&) {
    dx = dy;
  }
};

constexpr int clocked_minibatches = 10'000;
constexpr int clocked_in_flight = 4;

/// Worker n's stages take so many times as long as the first one's; its order is that of a play.
sg::schedule::Fifo clocked_order(int n) {
  auto const worker = [](int of) {
    double const slower = 1 + 0.1 * of;
    return sg::schedule::WaveWorker{sg::schedule::Costs::uniform(slower, 2 * slower, 0), {1, 2, 3}};
  };
  sg::schedule::Fifo order{.in_flight = clocked_in_flight, .costs = worker(n).costs};
  order.gate = {.model = sg::staleness::WaveSynchronous{clocked_in_flight},
                .links = {{.rate = 8, .latency_s = 0.5}},
                .layer_bytes = {4, 4, 4, 4},
                .cuts = worker(n).cuts};
  for (int other = 0; other < 4; ++other)
    if (other != n) order.gate.others.push_back(worker(other));
  return order;
}

void tables(benchmark::State& state) {
  for ([[maybe_unused]] auto _ : state) {
    double const start_s = bench::now_s();
    for (int n = 0; n < 4; ++n)
      benchmark::DoNotOptimize(
          clocked_order(n).table({.ranks = 4, .microbatches = clocked_minibatches}));
    state.SetIterationTime(bench::now_s() - start_s);
  }
}

/// A stream that has been laid out before.
void clocked(benchmark::State& state) {
  sg::sim::Clock const clock(clocked_order(0).gate.links.front());
  sg::collective::ParameterServer const server({.workers = 4});
  auto const make = [&](int n) {
    auto const order = clocked_order(n);
    return sg::Pipeline{Empty{}, Empty{}, Empty{}, Empty{}}.with(
        order, sg::staleness::WaveSynchronous{.in_flight = clocked_in_flight, .distance = 0},
        server.worker(n), Sum{}, sg::optimizer::Sgd{.rate = 0.1},
        sg::sim::VirtualClock{.costs = order.costs, .clock = clock});
  };
  std::vector<decltype(make(0))> trainers;
  for (int n = 0; n < 4; ++n) trainers.push_back(make(n));
  sg::Batch<float, float> batch;
  batch.inputs.assign(clocked_minibatches, 1.0F);
  batch.targets.assign(clocked_minibatches, 1.0F);
  auto const run = [&] {
    std::vector<sg::Step> steps;
    for (auto& trainer : trainers) steps.push_back(trainer.stream(batch));
    sg::run_together(std::move(steps));
  };
  double const first_s = bench::now_s();
  run();
  state.counters["first_s"] = bench::now_s() - first_s;  // makes tables and programs
  for ([[maybe_unused]] auto _ : state) {
    double const start_s = bench::now_s();
    run();
    state.SetIterationTime(bench::now_s() - start_s);
  }
}

}  // namespace

int main(int argc, char** argv) {
  bench::add("workers/server", 3, exchange);
  bench::add("workers/small", 3, small);
  bench::add("workers/gate", 3,
             [](benchmark::State& state) { gate(state, std::chrono::milliseconds(2), 60); });
  bench::add("workers/long_gate", 1,
             [](benchmark::State& state) { gate(state, std::chrono::milliseconds(100), 20); });
  bench::add("workers/clock", 3, clocked);
  bench::add("workers/tables", 3, tables);
  auto const grade = [](bool met) { return met ? bench::Grade::passed : bench::Grade::failed; };
  return bench::run(
      argc, argv,
      {{"parameter server in process, 2 workers push and pull 64 MiB over 4 shards, against copies "
        "of the bytes touched",
        "workers/server",
        [=](bench::Results const& results) {
          double const share = results.counter("workers/server", "of_copy");
          return bench::Line{
              bench::text("%.1f ms (%.0f %%)", 1e3 * results.time_s("workers/server"), 100 * share),
              "at least 60 % of the copy", grade(share >= 0.6)};
        }},
       {"the same, pushes of 4 KiB by 16 workers on 2 threads", "workers/small",
        [=](bench::Results const& results) {
          double const a_second = results.counter("workers/small", "a_second");
          return bench::Line{bench::text("%.0f a second, 99 %% of them in %.1f us", a_second,
                                         results.counter("workers/small", "p99_us")),
                             "at least 500000 a second", grade(a_second >= 5e5)};
        }},
       {"a shut gate, from the push that opens it to the next forward", "workers/gate",
        [=](bench::Results const& results) {
          double const us = 1e6 * results.time_s("workers/gate");
          return bench::Line{bench::text("%.1f us", us), "at most 50 us", grade(us <= 50)};
        }},
       {"processor time while all wait for a gate that is shut for 2 ms", "workers/gate",
        [=](bench::Results const& results) {
          double const core = results.counter("workers/gate", "core");
          return bench::Line{bench::text("%.1f %% of a core", 100 * core), "at most 10 % of a core",
                             grade(core <= 0.1)};
        }},
       {"the same of a gate that is shut for 100 ms", "workers/long_gate",
        [=](bench::Results const& results) {
          double const core = results.counter("workers/long_gate", "core");
          double const us = 1e6 * results.time_s("workers/long_gate");
          return bench::Line{
              bench::text("%.2f %% of a core; next forward after %.1f us", 100 * core, us),
              "at most 1 %, 50 us", grade(core <= 0.01 && us <= 50)};
        }},
       {"4 unequal workers of 4 stages, 10 000 minibatches of empty layers each, in virtual time",
        "workers/clock",
        [=](bench::Results const& results) {
          double const s = results.time_s("workers/clock");
          double const first_s = results.counter("workers/clock", "first_s");
          return bench::Line{
              bench::text("%.2f s; %.2f s with tables and programs made for them", s, first_s),
              "at most 2 s", grade(first_s <= 2)};
        }},
       {"the tables of these workers, each from a play of all", "workers/tables",
        [=](bench::Results const& results) {
          double const s = results.time_s("workers/tables");
          return bench::Line{bench::text("%.2f s", s), "at most 0.5 s", grade(s <= 0.5)};
        }}});
}
