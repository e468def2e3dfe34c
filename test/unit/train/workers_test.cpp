// SPDX-License-Identifier: Apache-2.0
#include <stagger/collective/parameter_server.hpp>

#include "catch.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <stagger/engine/run_together.hpp>
#include <stagger/host/threads.hpp>
#include <stagger/model/lamb.hpp>
#include <stagger/model/muon.hpp>
#include <stagger/partition/cuts.hpp>
#include <stagger/schedule/fifo.hpp>
#include <stagger/schedule/one_f_one_b.hpp>
#include <stagger/staleness/asynchronous.hpp>
#include <stagger/staleness/local_sgd.hpp>
#include <stagger/staleness/round_robin_synchronous.hpp>
#include <stagger/staleness/stale_synchronous.hpp>
#include <stagger/staleness/wave_synchronous.hpp>
#include <stagger/train/pipeline.hpp>

#include "workers_oracle.hpp"

namespace workers_test {

namespace sg = stagger;
using namespace workers_oracle;

namespace {

template <class Model, class Optimizer>
void compare_in_process(Model const& waves, std::vector<std::vector<int>> const& cuts, int threads,
                        int minibatches, Optimizer const& optimizer) {
  sg::collective::ParameterServer const server({.workers = waves.workers, .shards = 2});
  compare(waves, server, cuts, threads, minibatches, optimizer);
}

}  // namespace

TEST_CASE("train/WaveSynchronous: two workers of two stages have the bits of a sequential loop",
          "[train]") {
  compare_in_process(Waves{}, {{2}}, 2, 16, sgd);
}

TEST_CASE(
    "train/WaveSynchronous: workers have the bits of a sequential loop for any cuts, depth and "
    "distance",
    "[train]") {
  sweep_waves(Sweep(7), [](Waves const& waves, int rotation, int threads, int minibatches,
                           auto const& optimizer) {
    compare_in_process(waves, cuts_from(rotation), threads, minibatches, optimizer);
  });
}

namespace {

/// With workers whose costs differ, all of which wait for each other over one link.
sg::schedule::Fifo gated(Waves const& waves, int rotation, int worker) {
  std::vector<sg::schedule::WaveWorker> all;
  for (int n = 0; n < waves.workers; ++n) {
    sg::schedule::WaveWorker each{.cuts = cuts_of(n, rotation)};
    for (std::size_t s = 0; s <= each.cuts.size(); ++s)
      each.costs.stages.push_back({.forward_s = 1.1 + 0.7 * n,
                                   .backward_input_s = 2.03 + 0.9 * static_cast<double>(s),
                                   .backward_weight_s = 0,
                                   .transfer_s = 0.06});
    all.push_back(std::move(each));
  }
  auto const own = all[static_cast<std::size_t>(worker)];
  all.erase(all.begin() + worker);
  return {.in_flight = waves.in_flight,
          .costs = own.costs,
          .gate = {.model = waves.model(),
                   .links = {{.rate = 90, .latency_s = 0.25}},
                   .layer_bytes = std::vector<std::uint64_t>(layers, 48),
                   .cuts = own.cuts,
                   .others = all}};
}

}  // namespace

TEST_CASE("train/WaveSynchronous: the order of a stage's work changes no bit", "[train]") {
  int reordered = 0;
  int alternating = 0;
  auto const compare_by = [](Waves const& waves, int rotation, int threads, int minibatches,
                             auto const& optimizer, auto schedule_of) {
    sg::collective::ParameterServer const server({.workers = waves.workers, .shards = 2});
    compare_streams(waves, all_of(waves.workers), minibatches, optimizer, [&](int n) {
      return make_by(schedule_of(n), sg::host::Threads{threads}, waves, server, n,
                     cuts_of(n, rotation), optimizer);
    });
  };
  sweep_waves(Sweep(17), [&](Waves const& waves, int rotation, int threads, int minibatches,
                             auto const& optimizer) {
    compare_by(waves, rotation, threads, minibatches, optimizer,
               [&](int n) { return gated(waves, rotation, n); });
    sg::Shape const shape{.ranks = static_cast<int>(cuts_of(0, rotation).size()) + 1,
                          .microbatches = minibatches};
    if (gated(waves, rotation, 0).table(shape).actions !=
        sg::schedule::Fifo{.in_flight = waves.in_flight}.table(shape).actions)
      ++reordered;
    for (int n = 0; n < waves.workers; ++n)  // it has as many in flight as there are stages
      if (static_cast<int>(cuts_of(n, rotation).size()) + 1 > waves.in_flight) return;
    compare_by(waves, rotation, threads, minibatches, optimizer,
               [](int) { return sg::schedule::OneFOneB{}; });
    ++alternating;
  });
  CHECK(reordered > 0);
  CHECK(alternating > 0);
}

TEST_CASE("train/StaleSynchronous: steps that push changes have the bits of a sequential loop",
          "[train]") {
  sweep_stale(Sweep(1), [](Stale const& stale, int rotation, int threads, auto const& optimizer) {
    sg::collective::ParameterServer const server({.workers = stale.workers, .shards = 2});
    compare_changes_on_threads(stale, server, rotation, threads, optimizer);
  });
}

TEST_CASE("train/StaleSynchronous: changes are made of gradients that the worker has clipped",
          "[train]") {
  for (int const workers : {1, 2})
    for (int const bound : {0, 2})
      for (int const rotation : {0, 1, 2, 3})
        for (double const clip : {0.05, 0.6}) {  // of all steps, and of some
          CAPTURE(workers, bound, rotation, clip);
          sg::collective::ParameterServer const server({.workers = workers, .shards = 2});
          compare_changes_on_threads(Stale{workers, bound}, server, rotation, 2, sgd, clip);
        }
}

TEST_CASE("train/ParameterServer: a user's own model of steps pushes changes", "[train]") {
  sg::collective::ParameterServer const server({.workers = 3});
  compare_changes_on_threads(Slow<true>{}, server, 0, 2, sgd);
}

TEST_CASE("train/ParameterServer: a user's own model has the bits of a sequential loop",
          "[train]") {
  compare_in_process(Slow<>{}, {{2}, {1}}, 2, 20, sgd);
}

TEST_CASE(
    "train/ParameterServer: a worker that fails ends the streams of the others, and all begin "
    "again from the server's weights",
    "[train]") {
  ends_and_begins_again(sg::collective::ParameterServer({.workers = 2}));
}

TEST_CASE("train/ParameterServer: a worker that waits too long names the other and its pushes",
          "[train]") {
  names_who_is_missing(sg::collective::ParameterServer({.workers = 2}));
}

TEST_CASE("train/ParameterServer: a push that is not finite is refused, and nothing of it is added",
          "[train]") {
  sg::collective::ParameterServer const server({.workers = 2});
  refuses_infinities(server, server);
}

TEST_CASE("train/ParameterServer: after a push that is not finite, a worker's optimizer goes on",
          "[train]") {
  auto const goes_on = [](auto make_worker, auto together) {
    sg::collective::ParameterServer const server({.workers = 2});
    auto a = make_worker(server, 0);
    auto b = make_worker(server, 1);
    auto const batch = data(8);
    auto bad = batch;
    bad.targets[5][0] = std::numeric_limits<float>::infinity();
    REQUIRE_THROWS_WITH(
        together(a, b, batch, bad),
        Catch::Matchers::Contains(" is not finite") &&
            Catch::Matchers::Contains(non_finite == sg::NonFinite::ignore
                                          ? "; that layer's push was not added, and those of other "
                                            "layers before it stay"
                                          : ", so "));
    auto const before = weights(a);
    together(a, b, batch, batch);
    for (auto const& layer : weights(a))
      for (float const weight : layer) REQUIRE(std::isfinite(weight));
    REQUIRE(weights(a) != before);
    REQUIRE(weights(a) == weights(b));
  };
  auto const streams = [](auto& a, auto& b, auto const& first, auto const& second) {
    sg::run_together(a.stream(first), b.stream(second));
  };
  auto const steps = [](auto& a, auto& b, auto const& first, auto const& second) {
    sg::run_together(a.step(first), b.step(second));
  };
  auto const of_waves = [](auto const& optimizer) {
    return [&optimizer](auto const& server, int n) {
      return make(Waves{2, 2, 0}, server, n, {2}, 1, optimizer);
    };
  };
  auto const all = [&] {
    goes_on(of_waves(sgd), streams);
    goes_on(of_waves(adam), streams);
    goes_on([](auto const& server, int n) { return stepping(Stale{2, 0}.model(), server, n, sgd); },
            steps);
    goes_on(
        [](auto const& server, int n) {
          return stepping(sg::staleness::LocalSgd{.period = 1, .average_state = false}, server, n,
                          sgd);
        },
        steps);
  };
  all();
  LetThemPush const by_the_server;
  all();
}

TEST_CASE("train/ParameterServer: refuses workers that differ", "[train]") {
  refuses_others(sg::collective::ParameterServer({.workers = 2}));
}

TEST_CASE(
    "train/ParameterServer: with Synchronous, steps of workers have the bits of one server loop",
    "[train]") {
  sweep_steps([](int workers, int rotation, int threads) {
    sg::collective::ParameterServer const server({.workers = workers, .shards = 2});
    compare_steps(workers, server, adam, rotation, threads);
  });
}

TEST_CASE("train/ParameterServer: optimizers of whole parameters have the bits of plain loops",
          "[train]") {
  sg::optimizer::Lamb const lamb{.rate = 0.05};
  sg::optimizer::Muon const muon{.rate = 0.05};
  for (int const rotation : {0, 2}) {
    sg::collective::ParameterServer const gradients({.workers = 3, .shards = 2});
    compare_steps(3, gradients, lamb, rotation);
    sg::collective::ParameterServer const changes({.workers = 2});
    compare_changes_on_threads(Stale{2, 1}, changes, rotation, 2, muon);
    compare_in_process(Waves{2, 2, 1}, cuts_from(rotation), 2, 11, lamb);
  }
  compare_steps(2, sg::collective::ParameterServer({.workers = 2}), muon);
}

TEST_CASE(
    "train/ParameterServer: with Synchronous, each worker clips its gradients by their own norm",
    "[train]") {
  sweep_steps([](int workers, int rotation, int threads) {
    for (double const clip : {0.05, 0.6}) {
      sg::collective::ParameterServer const server({.workers = workers, .shards = 2});
      int const clipped = compare_steps(workers, server, sgd, rotation, threads, clip);
      CAPTURE(workers, rotation, threads, clip);
      CHECK((clip == 0.05 ? clipped == 5 * workers : clipped > 0 && clipped < 5 * workers));
    }
  });
}

TEST_CASE("train/RoundRobinSynchronous: each gradient is N - 1 updates late, whatever the timing",
          "[train]") {
  constexpr int workers = 3;
  constexpr int count = 6;
  sg::collective::ParameterServer const server({.workers = workers});
  using Trainer = decltype(stepping(sg::staleness::RoundRobinSynchronous{}, server, 0, sgd));
  std::vector<Trainer> trainers;
  for (int n = 0; n < workers; ++n)
    trainers.push_back(stepping(sg::staleness::RoundRobinSynchronous{}, server, n, sgd));
  OracleServer<sg::optimizer::Sgd> oracle{sgd};
  std::vector<std::vector<Numbers>> seen(workers, oracle.w);
  for (int j = 0; j < count; ++j)
    for (std::size_t n = 0; n < workers; ++n) {
      oracle.step(
          scaled(gradients(seen[n], data(2, static_cast<double>(n) + 10.0 * j)), 1.0F / workers));
      seen[n] = oracle.w;
    }
  // Worker 0 has made its first push when the others begin: they may not see it.
  auto const head_start = data(2, 0.0);
  run(trainers[0].step(head_start));
  std::vector<std::thread> threads;
  for (std::size_t n = 0; n < workers; ++n)
    threads.emplace_back([&, n] {
      for (int j = n == 0 ? 1 : 0; j < count; ++j) {
        auto const batch = data(2, static_cast<double>(n) + 10.0 * j);
        static_cast<void>(run(trainers[n].step(batch)));
      }
    });
  for (auto& thread : threads) thread.join();
  for (std::size_t n = 0; n < workers; ++n) REQUIRE(weights(trainers[n]) == seen[n]);
}

TEST_CASE("train/StaleSynchronous: no worker is more than the bound ahead", "[train]") {
  // The slower worker looks, between two of its steps, how many more the faster one has ended.
  constexpr int bound = 2;
  sg::collective::ParameterServer const server({.workers = 2});
  auto a = stepping(sg::staleness::StaleSynchronous{bound}, server, 0, sgd);
  auto b = stepping(sg::staleness::StaleSynchronous{bound}, server, 1, sgd);
  std::atomic<int> ahead{0}, behind{0};
  std::atomic<int> most{0};
  std::thread fast([&] {
    for (int j = 0; j < 20; ++j) {
      auto const batch = data(1, j);
      static_cast<void>(run(a.step(batch)));
      ++ahead;
    }
  });
  std::thread slow([&] {
    for (int j = 0; j < 20; ++j) {
      auto const batch = data(1, j + 100);
      most = std::max(most.load(), ahead.load() - behind.load());
      static_cast<void>(run(b.step(batch)));
      ++behind;
    }
  });
  fast.join();
  slow.join();
  REQUIRE(most.load() <= bound);
}

TEST_CASE("train/Asynchronous: one worker alone trains as on one server", "[train]") {
  sg::collective::ParameterServer const server({.workers = 2, .weights = {1, 1}});
  auto a = stepping(sg::staleness::Asynchronous{}, server, 0, adam);
  auto b = stepping(sg::staleness::Asynchronous{}, server, 1, adam);
  OracleServer<sg::optimizer::AdamW> oracle{adam};
  auto seen_by_b = oracle.w;
  for (int j = 0; j < 4; ++j) {  // one after the other: the order of arrival is known
    auto const batch = data(2, j);
    static_cast<void>(run(a.step(batch)));
    oracle.step(gradients(oracle.w, batch));
    REQUIRE(weights(a) == oracle.w);
  }
  auto const batch = data(2, 50);
  static_cast<void>(run(b.step(batch)));
  oracle.step(gradients(seen_by_b = oracle.w, batch));
  REQUIRE(weights(b) == oracle.w);
}

TEST_CASE("train/WaveSynchronous: on arrival, one worker has the bits of a sequential loop",
          "[train]") {
  for (int const in_flight : {1, 3}) {
    sg::collective::ParameterServer const server({.workers = 1});
    std::vector<Layer> stack;
    for (int l = 0; l < layers; ++l) stack.emplace_back(l);
    auto train = sg::Pipeline{sg::Sequential{std::move(stack)}}.with(
        sg::partition::Cuts{{2}}, sg::schedule::Fifo{.in_flight = in_flight},
        sg::staleness::WaveSynchronous{.distance = 1}, server.worker(0), Loss{}, sgd,
        sg::host::Threads{2});
    std::vector<OracleWorker<sg::optimizer::Sgd>> oracle(1);
    oracle[0].batch = data(10);
    auto expected = first_weights();
    static_cast<void>(run(train.stream(oracle[0].batch)));
    // Of one worker, the newest weights contain all of its pushes: what a distance of 0 demands.
    sequential(Waves{1, in_flight, 0}, sgd, oracle, expected);
    REQUIRE(weights(train) == expected);
  }
}

TEST_CASE("train/WaveSynchronous: on arrival, all workers end with the same weights", "[train]") {
  for (int repeat = 0; repeat < 20; ++repeat) {
    sg::collective::ParameterServer const server({.workers = 3, .shards = 3});
    std::vector<decltype(make(Waves{3}, server, 0, {}, 1, sgd))> trainers;
    for (int n = 0; n < 3; ++n) {
      std::vector<Layer> stack;
      for (int l = 0; l < layers; ++l) stack.emplace_back(l);
      trainers.push_back(sg::Pipeline{sg::Sequential{std::move(stack)}}.with(
          sg::partition::Cuts{{1 + n}}, sg::schedule::Fifo{.in_flight = 4},
          sg::staleness::WaveSynchronous{.in_flight = 4, .distance = repeat % 3}, server.worker(n),
          Loss{}, sgd, sg::host::Threads{2}));
    }
    std::vector<Batch> batches;
    for (int n = 0; n < 3; ++n) batches.push_back(data(13, n));
    std::vector<sg::Step> steps;
    for (std::size_t n = 0; n < 3; ++n) steps.push_back(trainers[n].stream(batches[n]));
    sg::run_together(std::move(steps));
    auto const all = weights(trainers[0]);
    for (auto& trainer : trainers) REQUIRE(weights(trainer) == all);
    REQUIRE(all != first_weights());
  }
}

namespace {

struct Ahead : sg::staleness::StaleSynchronous {
  [[nodiscard]] constexpr int needs(int step) const noexcept { return step + 1; }
};
/// Needs less than nothing at first, and adds gradients in the order of workers.
struct Behind : sg::staleness::StaleSynchronous {
  static constexpr auto adds = sg::staleness::Adds::in_worker_order;
  [[nodiscard]] constexpr int needs(int step) const noexcept { return step - 3; }
};
/// Takes steps that are pushed two at a time.
struct Pairs : sg::staleness::StaleSynchronous {
  [[nodiscard]] constexpr int minibatches() const noexcept { return 2; }
};
/// Sets no limit to how far workers are apart.
struct Boundless : sg::staleness::Asynchronous {
  static constexpr auto adds = sg::staleness::Adds::in_worker_order;
};

}  // namespace

TEST_CASE("train/ParameterServer: refuses models that cannot be", "[train]") {
  sg::collective::ParameterServer const server({.workers = 2});
  REQUIRE_THROWS_WITH(stepping(Ahead{}, server, 0, sgd),
                      Catch::Matchers::Contains("needs 1 push of every worker at minibatch 0"));
  REQUIRE_THROWS_WITH(stepping(Behind{}, server, 0, sgd),
                      Catch::Matchers::Contains("needs 0 pushes of every worker at minibatch 1"));
  using sg::staleness::Adds;
  using sg::staleness::Pushes;
  sg::staleness::StaleSynchronous const exact{.bound = 2, .adds = Adds::in_worker_order};
  REQUIRE_THROWS_WITH(stepping(exact, server, 0, sgd),
                      Catch::Matchers::Contains("would lack its own; let it add on arrival, or "
                                                "push changes"));
  REQUIRE_THROWS_WITH(stepping(Boundless{{Pushes::changes}}, server, 0, sgd),
                      Catch::Matchers::Contains("would keep all of its changes"));
  REQUIRE_THROWS_WITH(stepping(Pairs{}, server, 0, sgd),
                      Catch::Matchers::Contains("a step is one push"));
  sg::staleness::StaleSynchronous mean = exact;
  mean.pushes = Pushes::weights;
  REQUIRE_THROWS_WITH(stepping(mean, server, 0, sgd),
                      Catch::Matchers::Contains("take staleness::LocalSgd, or let the model push "
                                                "gradients or changes"));
  auto const streaming = [&](int in_flight, sg::staleness::WaveSynchronous const& model) {
    return sg::Pipeline{sg::Sequential{std::vector<Layer>{Layer(0), Layer(1)}}}.with(
        sg::schedule::Fifo{.in_flight = in_flight}, model, server.worker(0), Loss{}, sgd,
        sg::host::Threads{2});
  };
  REQUIRE_THROWS_WITH(streaming(1, {.in_flight = -1}),
                      Catch::Matchers::Contains("a wave of -1 minibatches cannot be pushed"));
  REQUIRE_THROWS_WITH(streaming(2, {.in_flight = 2, .distance = -1}),
                      Catch::Matchers::Contains("a worker cannot be -1 waves ahead"));
  auto const clipping = [&](auto const&... model) {
    return sg::Pipeline{sg::Sequential{std::vector<Layer>{Layer(0), Layer(1)}}}.with(
        model..., server.worker(0), Loss{}, sgd, sg::host::Threads{2}, sg::Options{.clip_norm = 1});
  };
  REQUIRE_THROWS_WITH(
      clipping(sg::schedule::Fifo{.in_flight = 2}, sg::staleness::WaveSynchronous{2}),
      Catch::Matchers::Contains("gradients of a stream cannot be clipped by their norm"));
}

TEST_CASE("train/ParameterServer: a step that waits too long names the worker that is missing",
          "[train]") {
  auto const waits = [](auto const& model) {
    sg::collective::ParameterServer const server({.workers = 2});
    auto const make = [&](int n) {
      return sg::Pipeline{sg::Sequential{std::vector<Layer>{Layer(0), Layer(1)}}}.with(
          sg::partition::Cuts{{1}}, model, server.worker(n), Loss{}, sgd, sg::host::Threads{2},
          sg::Options{.deadline_s = 0.2});
    };
    auto const idle = make(0);
    auto train = make(1);
    auto const batch = data(2);
    REQUIRE_THROWS_WITH(run(train.step(batch)),
                        Catch::Matchers::Contains("worker 0, which has made 0 pushes"));
  };
  waits(sg::staleness::Synchronous{});
  waits(sg::staleness::StaleSynchronous{0});
  waits(sg::staleness::RoundRobinSynchronous{});
  waits(sg::staleness::LocalSgd{.period = 1});
  waits(split_late);
}

TEST_CASE(
    "train/ParameterServer: an optimizer that the server has keeps the numbers it joined with",
    "[train]") {
  auto const batch = data(2);
  auto const changed = [&](auto const& model, int worker) {
    sg::collective::ParameterServer const server({.workers = 2});
    auto a = stepping(model, server, 0, sgd);
    auto b = stepping(model, server, 1, sgd);
    sg::run_together(a.step(batch), b.step(batch));
    (worker == 0 ? a : b).optimizer().rate = 0.5;
    sg::run_together(a.evaluate(batch), b.evaluate(batch));  // which no optimizer takes part in
    sg::run_together(a.step(batch), b.step(batch));
  };
  for (int const worker : {0, 1}) {
    auto const refusal = Catch::Matchers::Contains(
        "the optimizer of this worker was 'stagger::optimizer::Sgd(0.02, 0.9, 0.01)' when it "
        "joined and is now 'stagger::optimizer::Sgd(0.5, 0.9, 0.01)'");
    CHECK_THROWS_WITH(changed(sg::staleness::Synchronous{}, worker), refusal);
    CHECK_THROWS_WITH(changed(sg::staleness::Asynchronous{}, worker), refusal);
    CHECK_THROWS_WITH(changed(split_late, worker), refusal);
    // Where each worker has an optimizer of its own, it may change.
    CHECK_NOTHROW(changed(sg::staleness::Asynchronous{sg::staleness::Pushes::changes}, worker));
    CHECK_NOTHROW(changed(sg::staleness::LocalSgd{.period = 1}, worker));
  }
}

TEST_CASE("train/ParameterServer: refuses workers that push other things", "[train]") {
  sg::collective::ParameterServer const server({.workers = 2});
  auto const a = make(Waves{2, 1, 0}, server, 0, {2}, 1, sgd);
  REQUIRE_THROWS_WITH(
      stepping(sg::staleness::Asynchronous{}, server, 1, sgd),
      Catch::Matchers::Contains("worker 1 pushes gradients, to be added on arrival, where the "
                                "others push changes, to be added in the order of workers"));
}

TEST_CASE("train/ParameterServer: refuses workers with other bounds on how far they may be ahead",
          "[train]") {
  using sg::staleness::Asynchronous;
  using sg::staleness::StaleSynchronous;
  auto const refused = [](auto const& first, auto const& second, char const* words) {
    sg::collective::ParameterServer const server({.workers = 2});
    auto const a = stepping(first, server, 0, sgd);
    CHECK_THROWS_WITH(stepping(second, server, 1, sgd), Catch::Matchers::Contains(words));
  };
  refused(StaleSynchronous{1}, StaleSynchronous{3},
          "worker 1 may be 4 pushes ahead of the slowest, the others 2 pushes");
  refused(StaleSynchronous{1}, Asynchronous{},
          "worker 1 may be any number of pushes ahead of the slowest, the others 2 pushes");
  refused(Asynchronous{}, StaleSynchronous{0},
          "worker 1 may be 1 push ahead of the slowest, the others any number of pushes");
}

}  // namespace workers_test
