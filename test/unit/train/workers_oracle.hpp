// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Workers with their oracles: sequential loops that keep everything they ever made.

#include "catch.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include <stagger/collective/parameter_server.hpp>
#include <stagger/engine/run_together.hpp>
#include <stagger/host/threads.hpp>
#include <stagger/partition/cuts.hpp>
#include <stagger/schedule/fifo.hpp>
#include <stagger/staleness/overlapped_synchronous.hpp>
#include <stagger/staleness/stale_synchronous.hpp>
#include <stagger/staleness/synchronous.hpp>
#include <stagger/staleness/wave_synchronous.hpp>
#include <stagger/train/pipeline.hpp>

#include "server_oracle.hpp"
#include "sweep.hpp"

namespace workers_oracle {

namespace sg = stagger;
using namespace plain_layers;

struct Waves {
  int workers = 2;
  int in_flight = 4;
  int distance = 0;
  using Model = sg::staleness::WaveSynchronous;
  [[nodiscard]] std::size_t needed(std::size_t m) const {
    auto const Nm = static_cast<std::size_t>(in_flight);
    auto const D = static_cast<std::size_t>(distance);
    return (m + 1) / Nm > D + 1 ? (m + 1) / Nm - 1 - D : 0;
  }
  [[nodiscard]] sg::staleness::WaveSynchronous model() const {
    return {
        .in_flight = in_flight, .distance = distance, .adds = sg::staleness::Adds::in_worker_order};
  }
};

/// Steps whose changes are pushed, up to `bound` ahead: waves of one minibatch.
struct Stale {
  int workers = 2;
  int bound = 0;
  static constexpr int in_flight = 1;
  [[nodiscard]] std::size_t needed(std::size_t m) const { return Waves{1, 1, bound}.needed(m); }
  [[nodiscard]] sg::staleness::StaleSynchronous model() const {
    return {.bound = bound,
            .pushes = sg::staleness::Pushes::changes,
            .adds = sg::staleness::Adds::in_worker_order};
  }
};

/// A user's model: in step for a while, then up to `later` behind.
/// @tparam steps  whether it is taken by steps
template <bool steps> struct SlowStart {
  using policy_tag = sg::StalenessTag;
  static constexpr bool synchronous = steps;
  static constexpr auto pushes = sg::staleness::Pushes::changes;
  static constexpr auto adds = sg::staleness::Adds::in_worker_order;
  int later = 4;
  [[nodiscard]] int microbatches() const { return 1; }
  [[nodiscard]] int minibatches() const { return 1; }
  [[nodiscard]] int version(int m, int) const { return m; }
  [[nodiscard]] int needs(int m) const { return m < 10 ? m : m - later; }
};
template <bool steps = false> struct Slow {
  int workers = 3;
  static constexpr int in_flight = 1;
  [[nodiscard]] SlowStart<steps> model() const { return {}; }
  [[nodiscard]] std::size_t needed(std::size_t m) const {  // 9 at 9, so at 10 to 13 too
    return m < 10 ? m : std::max(std::size_t{9}, m - 4);
  }
};

inline void add(Numbers& sum, Numbers const& more) {
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += more[i];
}

/// An optimizer without its delays.
template <class Optimizer> Optimizer const& at_once(Optimizer const& optimizer) {
  return optimizer;
}

/// One worker of the oracle: what it has made so far, of each layer.
template <class Optimizer> struct OracleWorker {
  Batch batch;
  std::size_t microbatches = 1;                                               // of a minibatch
  double clip = 0;                                                            // norm; 0: any
  int steps = 0;                                                              // before the stream
  std::vector<std::vector<Numbers>> seen{};                                   // [minibatches + 1]
  std::vector<std::vector<Numbers>> changes{layers, std::vector<Numbers>{}};  // [layers][made]
  std::vector<std::vector<Numbers>> pushes{layers, std::vector<Numbers>{}};   // likewise
  std::vector<Numbers> first{layers, Numbers(width* width + width)};
  std::vector<Numbers> second = first;

  [[nodiscard]] std::size_t minibatches() const { return batch.inputs.size() / microbatches; }
  [[nodiscard]] Batch minibatch(std::size_t m) const {
    Batch part;
    for (std::size_t i = m * microbatches; i < (m + 1) * microbatches; ++i) {
      part.inputs.push_back(batch.inputs[i]);
      part.targets.push_back(batch.targets[i]);
    }
    return part;
  }
  /// Forward, backward and change of a minibatch, with these weights.
  void train(Optimizer const& optimizer, std::vector<Numbers> const& w, std::size_t m, int step) {
    auto const gradient = gradients(w, minibatch(m));
    for (std::size_t l = 0; l < layers; ++l) {
      Numbers change(gradient[l].size()), own = gradient[l];
      sg::OptimizerView<float> view;
      view.value = w[l].data();
      view.next = change.data();
      view.gradient = own.data();
      view.state = {first[l].data(), second[l].data()};
      view.size = change.size();
      view.rows = matrix_rows;
      at_once(optimizer).change(view, clip_scale(gradient, clip), step);
      changes[l].push_back(change);
    }
  }
};

/// HetPipe's weights by their definition: a snapshot of the waves that are needed, own waves that it
/// lacks, then own minibatches. Keeps everything it ever made, and runs one minibatch at a time. The
/// others go on without a worker whose stream is shorter.
/// @param last  weights from before the streams, and after them
template <class Model, class Optimizer>
void sequential(Model const& waves, Optimizer const& optimizer,
                std::vector<OracleWorker<Optimizer>>& workers, std::vector<Numbers>& last) {
  auto const Nm = static_cast<std::size_t>(waves.in_flight);
  std::vector<std::vector<Numbers>> snapshots{last};  // [waves][layers]
  std::size_t most = 0;
  for (auto const& worker : workers) most = std::max(most, worker.minibatches());
  auto const add_wave = [&](std::size_t c) {
    auto next = snapshots.back();
    for (std::size_t l = 0; l < layers; ++l)
      for (auto& worker : workers)
        if (c < worker.pushes[l].size()) add(next[l], worker.pushes[l][c]);
    snapshots.push_back(next);
  };
  for (auto& worker : workers) {
    worker.seen.clear();
    for (std::size_t l = 0; l < layers; ++l) worker.changes[l].clear(), worker.pushes[l].clear();
  }
  for (std::size_t m = 0;; ++m) {
    std::size_t const own = m + 1 > Nm ? m + 1 - Nm : 0;
    std::size_t const needed = waves.needed(m);
    for (auto& worker : workers) {
      std::size_t const count = worker.minibatches();
      if (m > count) continue;
      auto w = snapshots[needed];
      for (std::size_t l = 0; l < layers; ++l) {
        for (std::size_t c = needed; c < own / Nm; ++c) add(w[l], worker.pushes[l][c]);
        for (std::size_t q = own / Nm * Nm; q < own; ++q) add(w[l], worker.changes[l][q]);
      }
      worker.seen.push_back(w);
      if (m == count) continue;
      worker.train(optimizer, w, m, worker.steps + static_cast<int>(m) + 1);
      if ((m + 1) % Nm != 0 && m + 1 != count) continue;
      for (std::size_t l = 0; l < layers; ++l) {
        auto sum = worker.changes[l][m / Nm * Nm];
        for (std::size_t q = m / Nm * Nm + 1; q <= m; ++q) add(sum, worker.changes[l][q]);
        worker.pushes[l].push_back(sum);
      }
    }
    if (m == most) break;
    if ((m + 1) % Nm == 0 || m + 1 == most) add_wave(m / Nm);
  }
  for (auto& worker : workers) worker.steps += static_cast<int>(worker.minibatches());
  last = snapshots.back();
}

/// Of the workers that are made from now on. A test of what the server does with gradients that are
/// not finite lets workers push them.
inline sg::NonFinite non_finite = sg::NonFinite::fail;
struct LetThemPush {
  LetThemPush() { non_finite = sg::NonFinite::ignore; }
  ~LetThemPush() { non_finite = sg::NonFinite::fail; }
};

/// A worker of four layers that takes streams.
/// @tparam Server  whatever has workers
template <class Model, class Server, class Optimizer, class Device, class Schedule>
auto make_by(Schedule const& schedule, Device device, Model const& waves, Server const& server,
             int worker, std::vector<int> cuts, Optimizer const& optimizer, int fail_at = -1,
             double deadline_s = 60) {
  std::vector<Layer> model;
  for (int l = 0; l < layers; ++l) model.emplace_back(l);
  model.back().fail_at = fail_at;
  return sg::Pipeline{sg::Sequential{std::move(model)}}.with(
      sg::partition::Cuts{std::move(cuts)}, schedule, waves.model(), server.worker(worker), Loss{},
      optimizer, std::move(device),
      sg::Options{.deadline_s = deadline_s, .non_finite = non_finite});
}
template <class Model, class Server, class Optimizer, class Device>
auto make_on(Device device, Model const& waves, Server const& server, int worker,
             std::vector<int> cuts, Optimizer const& optimizer, int fail_at = -1,
             double deadline_s = 60) {
  return make_by(sg::schedule::Fifo{.in_flight = waves.in_flight}, std::move(device), waves, server,
                 worker, std::move(cuts), optimizer, fail_at, deadline_s);
}
template <class Model, class Server, class Optimizer>
auto make(Model const& waves, Server const& server, int worker, std::vector<int> cuts, int threads,
          Optimizer const& optimizer, int fail_at = -1, double deadline_s = 60) {
  return make_on(sg::host::Threads{threads}, waves, server, worker, std::move(cuts), optimizer,
                 fail_at, deadline_s);
}

/// Cuts into 2, 2, 4 and 1 stages, of which each worker takes other ones than those beside it.
/// @param rotation  0 to 3: which of them the first worker takes
inline std::vector<int> const& cuts_of(std::size_t worker, int rotation = 0) {
  static std::vector<std::vector<int>> const all{{2}, {1}, {1, 2, 3}, {}};
  return all[(worker + static_cast<std::size_t>(rotation)) % all.size()];
}
inline std::vector<int> const& cuts_of(int worker, int rotation = 0) {
  return cuts_of(static_cast<std::size_t>(worker), rotation);
}
inline std::vector<std::vector<int>> cuts_from(int rotation) {
  return {cuts_of(0, rotation), cuts_of(1, rotation), cuts_of(2, rotation), cuts_of(3, rotation)};
}
inline std::vector<int> all_of(int workers) {
  std::vector<int> all(static_cast<std::size_t>(workers));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

/// Trains two streams, and compares with the oracle after each.
/// @param own     the workers of this process
/// @param make    (worker) -> trainer
/// @param uneven  in the second stream, most workers take fewer minibatches than the first one
template <class Model, class Optimizer, class Make>
void compare_streams(Model const& waves, std::vector<int> const& own, int minibatches,
                     Optimizer const& optimizer, Make make, bool uneven = true) {
  CAPTURE(waves.workers, waves.in_flight, minibatches);
  std::vector<OracleWorker<Optimizer>> oracle(static_cast<std::size_t>(waves.workers));
  std::vector<decltype(make(0))> trainers;
  for (int const n : own) trainers.push_back(make(n));
  auto expected = first_weights();
  for (int stream = 0; stream < 2; ++stream) {
    for (std::size_t n = 0; n < oracle.size(); ++n) {
      int const fewer = uneven ? stream * (static_cast<int>(n) * 5 % 7) : 0;
      oracle[n].batch =
          data(std::max(1, minibatches - fewer), static_cast<double>(n) + 10.0 * stream);
    }
    std::vector<sg::Step> steps;
    for (std::size_t k = 0; k < own.size(); ++k)
      steps.push_back(trainers[k].stream(oracle[static_cast<std::size_t>(own[k])].batch));
    sg::run_together(std::move(steps));
    sequential(waves, optimizer, oracle, expected);
    for (auto& trainer : trainers) REQUIRE(weights(trainer) == expected);
  }
}

/// The same with all workers on threads of this process.
template <class Model, class Server, class Optimizer>
void compare(Model const& waves, Server const& server, std::vector<std::vector<int>> const& cuts,
             int threads, int minibatches, Optimizer const& optimizer) {
  CAPTURE(threads);
  compare_streams(waves, all_of(waves.workers), minibatches, optimizer, [&](int n) {
    return make(waves, server, n, cuts[static_cast<std::size_t>(n) % cuts.size()], threads,
                optimizer);
  });
}

/// Takes steps whose changes are pushed, and compares with the oracle what each worker has after
/// each of them.
/// @param own   the workers of this process
/// @param make  (worker) -> trainer
/// @param clip  norm to which each worker clips its gradients; 0: none does
template <class Model, class Optimizer, class Make>
void compare_changes(Model const& stale, std::vector<int> const& own, Optimizer const& optimizer,
                     Make make, double clip = 0) {
  constexpr std::size_t count = 11;
  std::vector<OracleWorker<Optimizer>> oracle(static_cast<std::size_t>(stale.workers));
  for (std::size_t n = 0; n < oracle.size(); ++n) {
    oracle[n].microbatches = 2;
    oracle[n].clip = clip;
    oracle[n].batch = data(2 * count, static_cast<double>(n));
  }
  auto last = first_weights();
  sequential(stale, optimizer, oracle, last);
  std::vector<decltype(make(0))> trainers;
  for (int const n : own) trainers.push_back(make(n));
  std::vector<Batch> batches(own.size());
  std::vector<std::vector<std::vector<Numbers>>> ended(own.size());
  std::vector<sg::Steps> steps;
  for (std::size_t k = 0; k < own.size(); ++k)
    steps.push_back([&, k, m = std::size_t{0}](sg::Metrics const* before) mutable {
      if (before != nullptr) ended[k].push_back(weights(trainers[k]));
      if (m == count) return std::optional<sg::Step>{};
      batches[k] = oracle[static_cast<std::size_t>(own[k])].minibatch(m++);
      return std::optional(trainers[k].step(batches[k]));
    });
  sg::run_together(std::move(steps));
  for (std::size_t k = 0; k < own.size(); ++k)
    for (std::size_t m = 0; m < count; ++m) {
      CAPTURE(own[k], m);
      REQUIRE(ended[k][m] == oracle[static_cast<std::size_t>(own[k])].seen[m + 1]);
    }
}

/// Now and then makes its stage wait: where its gradient says so, which differs from worker to
/// worker and from stage to stage.
struct SlowSgd : sg::optimizer::Sgd {
  template <class T>
  void change(sg::OptimizerView<T> const& view, double scale, std::int64_t step) const noexcept {
    if (std::fmod(std::abs(static_cast<double>(view.gradient[0])) * 1e6, 29) < 1)
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    Sgd::change(view, scale, step);
  }
};
inline sg::optimizer::Sgd const& at_once(SlowSgd const& optimizer) { return optimizer; }

inline sg::optimizer::AdamW const adam{.rate = 0.05, .weight_decay = 0.1};
inline sg::optimizer::Sgd const sgd{.rate = 0.02, .momentum = 0.9, .weight_decay = 0.01};

/// Every number of workers, of minibatches in flight, of waves ahead, of stages for each worker, and
/// of threads, without delays and with them.
/// @param check  (waves, rotation, threads, minibatches, optimizer), `rotation` as of cuts_of
template <class Check> void sweep_waves(Sweep sweep, Check check) {
  for (int const workers : {1, 2, 3, 4})
    for (int const in_flight : {1, 2, 4, 5})
      for (int const distance : {0, 1, 2, 8})
        for (int const rotation : {0, 1, 2, 3})
          for (int const threads : {1, 2, 4})
            for (int const minibatches : {1, 11, 33})
              for (bool const late : {false, true}) {
                if (!sweep.takes()) continue;
                CAPTURE(distance, rotation, late);
                Waves const waves{workers, in_flight, distance};
                late ? check(waves, rotation, threads, minibatches, SlowSgd{sgd})
                     : check(waves, rotation, threads, minibatches, adam);
              }
}
/// The same of steps that push changes.
/// @param check  (stale, rotation, threads, optimizer)
template <class Check> void sweep_stale(Sweep sweep, Check check) {
  for (int const workers : {1, 2, 3, 4})
    for (int const bound : {0, 1, 3})
      for (int const rotation : {0, 1, 2, 3})
        for (int const threads : {1, 2, 4})
          for (bool const late : {false, true}) {
            if (!sweep.takes()) continue;
            CAPTURE(workers, bound, rotation, threads, late);
            late ? check(Stale{workers, bound}, rotation, threads, SlowSgd{sgd})
                 : check(Stale{workers, bound}, rotation, threads, adam);
          }
}

/// A worker of four layers that takes steps.
/// @param clip  norm to which it clips its gradients; 0: it does not
template <class Device, class Model, class Server, class Optimizer>
auto stepping_on(Device device, Model const& model, Server const& server, int worker,
                 Optimizer const& optimizer, std::vector<int> cuts, double clip = 0) {
  std::vector<Layer> stack;
  for (int l = 0; l < layers; ++l) stack.emplace_back(l);
  sg::Options options{.non_finite = non_finite};
  if (clip != 0) options.clip_norm = clip;
  return sg::Pipeline{sg::Sequential{std::move(stack)}}.with(sg::partition::Cuts{std::move(cuts)},
                                                             model, server.worker(worker), Loss{},
                                                             optimizer, std::move(device), options);
}
template <class Model, class Server, class Optimizer>
auto stepping(Model const& model, Server const& server, int worker, Optimizer const& optimizer,
              std::vector<int> cuts = {2}, int threads = 2, double clip = 0) {
  return stepping_on(sg::host::Threads{threads}, model, server, worker, optimizer, std::move(cuts),
                     clip);
}

/// As compare_changes, with all workers in this process and cuts that differ from worker to worker.
template <class Model, class Server, class Optimizer>
void compare_changes_on_threads(Model const& stale, Server const& server, int rotation, int threads,
                                Optimizer const& optimizer, double clip = 0) {
  compare_changes(
      stale, all_of(stale.workers), optimizer,
      [&](int n) {
        return stepping(stale.model(), server, n, optimizer, cuts_of(n, rotation), threads, clip);
      },
      clip);
}

/// Steps of two workers, of whom the second, then the first has a gradient that is not finite; only
/// the first looks before it pushes.
template <class First, class Second> void refuses_infinities(First const& one, Second const& two) {
  auto a = stepping(sg::staleness::Synchronous{}, one, 0, adam);
  LetThemPush const let_the_second;
  auto b = stepping(sg::staleness::Synchronous{}, two, 1, adam);
  auto const batch = data(2);
  auto bad = batch;
  bad.targets[1][0] = std::numeric_limits<float>::infinity();
  sg::run_together(a.step(batch), b.step(batch));
  REQUIRE_THROWS_WITH(
      sg::run_together(a.step(batch), b.step(bad)),
      Catch::Matchers::Contains("push 2 of worker 1 has a number in layer ") &&
          Catch::Matchers::Contains(" that is not finite; that layer's push was not added"));
  REQUIRE_THROWS_WITH(sg::run_together(a.step(bad), b.step(batch)),
                      Catch::Matchers::StartsWith("a gradient of layer 3 on rank 1 is not finite"));
  for (auto const& layer : weights(a))
    for (float const weight : layer) REQUIRE(std::isfinite(weight));
  sg::run_together(a.step(batch), b.step(batch));
  REQUIRE(weights(a) == weights(b));
}

/// The second of two workers fails in long streams: those of the first end, both begin again from the
/// server's weights, and once the second is gone another one takes its place.
template <class Server> void ends_and_begins_again(Server const& server) {
  Waves const waves{2, 2, 0};
  auto a = make(waves, server, 0, {2}, 2, sgd);
  auto b = std::make_unique<decltype(make(waves, server, 1, {2}, 2, sgd))>(
      make(waves, server, 1, {2}, 2, sgd, 7));
  auto const batch = data(12);
  for (int i = 0; i < 20; ++i) {
    REQUIRE_THROWS_WITH(sg::run_together(a.stream(batch), b->stream(batch)), "out of ink");
    REQUIRE(weights(a) == weights(*b));
  }
  auto const short_batch = data(6);
  sg::run_together(a.stream(short_batch), b->stream(short_batch));
  REQUIRE(weights(a) == weights(*b));
  REQUIRE_THROWS_WITH(sg::run_together(a.stream(batch), b->stream(batch)), "out of ink");
  b = nullptr;
  auto other = make(waves, server, 1, {2}, 2, sgd);
  sg::run_together(a.stream(batch), other.stream(batch));
  REQUIRE(weights(a) == weights(other));
}

/// The first of two workers waits for the second, which does not push.
template <class Server> void names_who_is_missing(Server const& server) {
  Waves const waves{2, 2, 0};
  auto a = make(waves, server, 0, {2}, 1, sgd, -1, 0.2);
  auto b = make(waves, server, 1, {2}, 1, sgd);
  auto const batch = data(8);
  REQUIRE_THROWS_WITH(run(a.stream(batch)),
                      Catch::Matchers::Contains("worker 1, which has made 0 pushes"));
}

/// Workers that differ from the first of two.
template <class Server> void refuses_others(Server const& server) {
  Waves const waves{2, 2, 0};
  auto a = make(waves, server, 0, {2}, 1, sgd);
  REQUIRE_THROWS_WITH(make(Waves{2, 3, 0}, server, 1, {2}, 1, sgd),
                      Catch::Matchers::Contains("worker 1 pushes after every 3 minibatches"));
  REQUIRE_THROWS_WITH(make(Waves{2, 2, 3}, server, 1, {2}, 1, sgd),
                      Catch::Matchers::Contains("worker 1 may be 5 pushes ahead of the slowest, "
                                                "the others 2 pushes; give all workers the same "
                                                "staleness model"));
  REQUIRE_THROWS_WITH(
      make(waves, server, 1, {2}, 1, sg::optimizer::Sgd{.rate = 0.5}),
      Catch::Matchers::Contains("worker 1 and the others disagree on the optimizer: worker 1 has "
                                "'stagger::optimizer::Sgd(0.5, 0, 0)', the others have "
                                "'stagger::optimizer::Sgd(0.02, 0.9, 0.01)'"));
  REQUIRE_THROWS_WITH(make(waves, server, 1, {2}, 1, SlowSgd{sgd}),  // another type, equal numbers
                      Catch::Matchers::Contains("SlowSgd(0.02, 0.9, 0.01)'"));
  REQUIRE_THROWS_WITH(make(waves, server, 0, {2}, 1, sgd),
                      Catch::Matchers::Contains("worker 0 trains already"));
  REQUIRE_THROWS_WITH(make(waves, server, 2, {2}, 1, sgd),
                      Catch::Matchers::Contains("no worker 2"));
  auto const refuses_model = [&](std::vector<Layer> model, char const* words) {
    REQUIRE_THROWS_WITH((sg::Pipeline{sg::Sequential{std::move(model)}}.with(
                            sg::schedule::Fifo{.in_flight = 2}, waves.model(), server.worker(1),
                            Loss{}, sgd, sg::host::Threads{1})),
                        Catch::Matchers::Contains(words));
  };
  auto const named = [](char const* name, Numbers const& first) {
    Layer layer(2);
    layer.weight = sg::Parameter<>(name, first);
    return layer;
  };
  Numbers more = initial(2);
  more.resize(width * width + width + 1);
  refuses_model({Layer(0), Layer(1), Layer(2)}, "worker 1 has 3 layers, the others have 4");
  refuses_model({Layer(0), Layer(1), named("weight", more), Layer(3)},
                "layer 2 of worker 1 has the parameters 'weight: 13 floats, 64 bytes in all', that "
                "of the others 'weight: 12 floats in 4 rows, 64 bytes in all'");
  refuses_model({Layer(0), Layer(1), named("weight", initial(2)), Layer(3)},
                "'weight: 12 floats, 64 bytes in all', that of the others 'weight: 12 floats in 4 "
                "rows, ");
  refuses_model({Layer(0), Layer(1), named("bias", initial(2)), Layer(3)},
                "'bias: 12 floats, 64 bytes in all', that of the others 'weight: ");
  refuses_model({Layer(0), Layer(1), Layer(2), Layer(0)},
                "the first values of layer 3 of worker 1 differ from those of the others");
}

/// A model some of whose layers are late, one of them in part.
using SplitLate = sg::staleness::OverlappedSynchronous<
    sg::staleness::overlapped::ParameterGradientProduct, sg::staleness::overlapped::SplitLayer,
    sg::staleness::overlapped::ShareLate, sg::staleness::overlapped::MeanGradient>;
inline SplitLate const split_late{.budget = {0.6}};

/// Takes steps of two workers with late layers, and compares with workers of one process.
/// @param one, two  where the workers are
template <class First, class Second> void compare_late_steps(First const& one, Second const& two) {
  sg::collective::ParameterServer const near({.workers = 2});
  auto a = stepping(split_late, one, 0, adam, {1});
  auto b = stepping(split_late, two, 1, adam, {2}, 1);
  auto c = stepping(split_late, near, 0, adam);
  auto d = stepping(split_late, near, 1, adam, {3});
  for (int step = 0; step < 12; ++step) {
    auto const first = data(2, step);
    auto const second = data(3, step + 10.0);
    sg::run_together(a.step(first), b.step(second));
    sg::run_together(c.step(first), d.step(second));
    if (step % 4 != 3) continue;  // to look at weights waits for what is late
    REQUIRE(weights(a) == weights(c));
    REQUIRE(weights(b) == weights(c));
    REQUIRE(weights(d) == weights(c));
  }
}

/// Takes steps in step, and compares with the oracle after each.
/// @param rotation  as of cuts_of
/// @param clip  norm to which each worker clips its gradients; 0: none does
/// @return      how many gradients of workers were clipped
template <class Server, class Optimizer>
int compare_steps(int workers, Server const& server, Optimizer const& optimizer, int rotation = 0,
                  int threads = 2, double clip = 0) {
  CAPTURE(workers, rotation, threads, clip);
  using Trainer = decltype(stepping(sg::staleness::Synchronous{}, server, 0, optimizer));
  std::vector<Trainer> trainers;
  for (int n = 0; n < workers; ++n)
    trainers.push_back(stepping(sg::staleness::Synchronous{}, server, n, optimizer,
                                cuts_of(n, rotation), threads, clip));
  int clipped = 0;
  OracleServer<Optimizer> oracle{optimizer};
  for (int step = 0; step < 5; ++step) {
    std::vector<Batch> batches;
    for (int n = 0; n < workers; ++n) batches.push_back(data(3, n + 10.0 * step));
    std::vector<sg::Step> steps;
    for (std::size_t n = 0; n < trainers.size(); ++n) steps.push_back(trainers[n].step(batches[n]));
    auto const metrics = sg::run_together(std::move(steps));
    std::vector<Numbers> sum(layers, Numbers(width * width + width));
    for (std::size_t n = 0; n < batches.size(); ++n) {
      auto part = gradients(oracle.w, batches[n]);
      REQUIRE(metrics[n].gradient_norm == (clip != 0 ? norm_of(part) : 0));
      double const scale = clip_scale(part, clip);
      if (scale != 1) ++clipped;
      part = scaled(scaled(part, static_cast<float>(scale)), static_cast<float>(1.0 / workers));
      for (std::size_t l = 0; l < layers; ++l) add(sum[l], part[l]);
    }
    oracle.step(sum);
    for (auto& trainer : trainers) REQUIRE(weights(trainer) == oracle.w);
  }
  return clipped;
}
/// @param check  (workers, rotation, threads)
template <class Check> void sweep_steps(Check check) {
  for (int const workers : {1, 2, 3, 4})
    for (int const rotation : {0, 1, 2, 3})
      for (int const threads : {1, 2, 4}) check(workers, rotation, threads);
}

}  // namespace workers_oracle
