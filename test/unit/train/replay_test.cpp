// SPDX-License-Identifier: Apache-2.0
#include <stagger/parameters/store_history.hpp>

#include "catch.hpp"

#include <chrono>
#include <cstddef>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include <stagger/staleness/asynchronous.hpp>
#include <stagger/staleness/round_robin_synchronous.hpp>
#include <stagger/staleness/stale_synchronous.hpp>
#include <stagger/staleness/synchronous.hpp>

#include "workers_oracle.hpp"

using namespace workers_oracle;
using sg::collective::ServerEvent;

namespace {

/// What a server remembers of one layer, and the values that it had after each push.
struct LayerReplay {
  std::vector<ServerEvent> log;
  std::vector<Numbers> after;                   // [pushes + 1]
  std::vector<std::vector<std::size_t>> takes;  // [workers][takes] pushes in what it took
  std::vector<std::size_t> added;               // [workers] so far
  std::size_t next = 0;                         // event to be carried out

  LayerReplay(std::vector<ServerEvent> events, std::size_t workers, std::size_t layer)
      : log(std::move(events)),
        after{initial(static_cast<int>(layer))},
        takes(workers),
        added(workers) {
    for (ServerEvent const& event : log)
      if (event.kind == ServerEvent::Kind::taken)
        takes[static_cast<std::size_t>(event.worker)].push_back(event.pushes);
  }
  /// How many of a worker's pushes are among the first so many of all.
  [[nodiscard]] std::size_t own(std::size_t worker, std::size_t pushes) const {
    std::size_t count = 0;
    for (ServerEvent const& event : log)
      count += event.kind == ServerEvent::Kind::added && event.pushes < pushes &&
               static_cast<std::size_t>(event.worker) == worker;
    return count;
  }
};

/// Carries a log out again, one push after the other.
class Replay {
 public:
  Replay(sg::collective::ParameterServer const& server, std::size_t workers) : workers_(workers) {
    for (std::size_t l = 0; l < layers; ++l) layers_.emplace_back(server.log(l), workers, l);
  }

  /// Whether all weights are known that a worker took, of each layer.
  [[nodiscard]] bool known(std::size_t worker, std::size_t take) const {
    for (LayerReplay const& layer : layers_)
      if (layer.takes[worker][take] >= layer.after.size()) return false;
    return true;
  }
  [[nodiscard]] std::vector<Numbers> taken(std::size_t worker, std::size_t take) const {
    std::vector<Numbers> w;
    for (LayerReplay const& layer : layers_) w.push_back(layer.after[layer.takes[worker][take]]);
    return w;
  }
  /// @param pushed  (worker, push, layer) what it pushed, or null where that is not known yet
  /// @param add     (values, pushed, worker, layer) adds it
  /// @return whether anything could be added
  template <class Pushed, class Add> bool advance(Pushed pushed, Add add) {
    bool any = false;
    for (std::size_t l = 0; l < layers; ++l)
      for (LayerReplay& layer = layers_[l]; layer.next < layer.log.size(); ++layer.next) {
        ServerEvent const& event = layer.log[layer.next];
        if (event.kind == ServerEvent::Kind::taken) continue;
        auto const n = static_cast<std::size_t>(event.worker);
        Numbers const* const what = pushed(n, layer.added[n], l);
        if (what == nullptr) break;
        REQUIRE(event.pushes == layer.after.size() - 1);  // each once, none left out
        Numbers values = layer.after.back();
        add(values, *what, n, l);
        layer.after.push_back(std::move(values));
        ++layer.added[n];
        any = true;
      }
    return any;
  }
  [[nodiscard]] std::vector<Numbers> last() const {
    std::vector<Numbers> w;
    for (LayerReplay const& layer : layers_) w.push_back(layer.after.back());
    return w;
  }
  [[nodiscard]] LayerReplay const& layer(std::size_t l) const { return layers_[l]; }
  [[nodiscard]] std::size_t workers() const { return workers_; }

 private:
  std::size_t workers_;
  std::vector<LayerReplay> layers_;
};

/// Steps of workers that push gradients: the optimizer and its state stand with the server.
template <class Optimizer>
void replay_steps(Replay& replay, Optimizer const& optimizer,
                  std::vector<std::vector<Batch>> const& batches) {
  std::size_t const N = replay.workers();
  std::vector<std::vector<std::vector<Numbers>>> pushes(N);  // [workers][steps][layers]
  std::vector<Numbers> first(layers, Numbers(width * width + width));
  auto second = first;
  std::vector<int> steps(layers);
  for (bool any = true; any;) {
    any = false;
    for (std::size_t n = 0; n < N; ++n)
      while (pushes[n].size() < batches[n].size() && replay.known(n, pushes[n].size())) {
        std::size_t const step = pushes[n].size();
        pushes[n].push_back(scaled(gradients(replay.taken(n, step), batches[n][step]),
                                   static_cast<float>(1.0 / static_cast<double>(N))));
        any = true;
      }
    any = replay.advance(
              [&](std::size_t n, std::size_t push, std::size_t l) {
                return push < pushes[n].size() ? &pushes[n][push][l] : nullptr;
              },
              [&](Numbers& values, Numbers const& gradient, std::size_t, std::size_t l) {
                sg::OptimizerView<float> view;
                view.value = view.next = values.data();
                view.gradient = gradient.data();
                view.state = {first[l].data(), second[l].data()};
                view.size = values.size();
                optimizer.update(view, 1, ++steps[l]);
              }) ||
          any;
  }
  for (std::size_t n = 0; n < N; ++n) REQUIRE(pushes[n].size() == batches[n].size());
}

/// Streams of workers that push a sum of changes for each wave.
template <class Optimizer>
std::vector<Numbers> replay_streams(Replay& replay, Optimizer const& optimizer, std::size_t Nm,
                                    std::vector<std::vector<Batch>> const& batches) {
  std::size_t const N = replay.workers();
  std::vector<OracleWorker<Optimizer>> workers(N);
  std::vector<std::size_t> stream(N), m(N), made(N), taken(N);  // taken before the stream
  // A worker's pushes are those of all streams, behind each other; its changes those of this one.
  auto const advance = [&](std::size_t n) {
    if (stream[n] == batches[n].size()) return false;
    Batch const& batch = batches[n][stream[n]];
    std::size_t const count = batch.inputs.size();
    std::size_t const own = m[n] + 1 > Nm ? m[n] + 1 - Nm : 0;
    std::size_t const take = taken[n] + own / Nm;
    if (!replay.known(n, take)) return false;
    auto w = replay.taken(n, take);
    for (std::size_t l = 0; l < layers; ++l) {
      auto const& layer = replay.layer(l);
      // It contains the worker's own waves, of this stream and those before it.
      REQUIRE(layer.own(n, layer.takes[n][take]) - layer.own(n, layer.takes[n][taken[n]]) ==
              own / Nm);
      for (std::size_t q = own / Nm * Nm; q < own; ++q) add(w[l], workers[n].changes[l][q]);
    }
    workers[n].batch = batch;
    workers[n].train(optimizer, w, m[n], static_cast<int>(++made[n]));
    if (++m[n] % Nm == 0 || m[n] == count)
      for (std::size_t l = 0; l < layers; ++l) {
        std::size_t const begin = (m[n] - 1) / Nm * Nm;
        auto sum = workers[n].changes[l][begin];
        for (std::size_t q = begin + 1; q < m[n]; ++q) add(sum, workers[n].changes[l][q]);
        workers[n].pushes[l].push_back(sum);
      }
    if (m[n] == count) {
      taken[n] += count / Nm + (count < Nm ? 2 : 1);  // the first, one behind each wave, the last
      for (auto& changes : workers[n].changes) changes.clear();
      m[n] = 0;
      ++stream[n];
    }
    return true;
  };
  for (bool any = true; any;) {
    any = false;
    for (std::size_t n = 0; n < N; ++n)
      while (advance(n)) any = true;
    any = replay.advance(
              [&](std::size_t n, std::size_t push, std::size_t l) -> Numbers const* {
                return push < workers[n].pushes[l].size() ? &workers[n].pushes[l][push] : nullptr;
              },
              [&](Numbers& values, Numbers const& sum, std::size_t, std::size_t) {
                add(values, sum);
              }) ||
          any;
  }
  for (std::size_t n = 0; n < N; ++n) REQUIRE(stream[n] == batches[n].size());
  return replay.last();
}

/// Workers that drift apart: each takes its steps, now and then a little later.
template <class Model>
void compare_steps(Model const& model, int workers, std::vector<int> const& cuts, int threads) {
  CAPTURE(workers, cuts, threads);
  sg::collective::ParameterServer const server({.workers = workers, .shards = 2, .log = true});
  auto const N = static_cast<std::size_t>(workers);
  std::vector<std::vector<Batch>> batches(N);
  std::vector<decltype(stepping(model, server, 0, adam))> trainers;
  for (std::size_t n = 0; n < N; ++n) {
    for (int step = 0; step < 8; ++step)
      batches[n].push_back(data(2, static_cast<double>(n) + 10.0 * step));
    trainers.push_back(stepping(model, server, static_cast<int>(n), adam, cuts, threads));
  }
  std::vector<sg::Steps> steps;
  for (std::size_t n = 0; n < N; ++n)
    steps.push_back([&, n, step = std::size_t{0}](sg::Metrics const*) mutable {
      if (step == batches[n].size()) return std::optional<sg::Step>{};
      if (step % 3 == n) std::this_thread::sleep_for(std::chrono::microseconds(200));
      return std::optional<sg::Step>(trainers[n].step(batches[n][step++]));
    });
  sg::run_together(std::move(steps));
  Replay replay(server, N);
  replay_steps(replay, adam, batches);
  for (std::size_t n = 0; n < N; ++n)  // what it took behind its last step, before others went on
    REQUIRE(weights(trainers[n]) == replay.taken(n, batches[n].size()));
}

}  // namespace

TEST_CASE("train/ParameterServer: carried out again, its log gives the bits of asynchronous steps",
          "[train]") {
  for (int const workers : {1, 2, 3, 4})
    for (auto const& cuts : {std::vector<int>{}, {2}, {1, 2, 3}})
      for (int const threads : {1, 2, 4}) {
        compare_steps(sg::staleness::Asynchronous{}, workers, cuts, threads);
        for (int const bound : {0, 1, 3})
          compare_steps(sg::staleness::StaleSynchronous{bound}, workers, cuts, threads);
      }
}

TEST_CASE("train/ParameterServer: carried out again, its log gives the bits of waves on arrival",
          "[train]") {
  for (int const workers : {1, 2, 3, 4})
    for (int const Nm : {1, 2, 4})
      for (int const D : {0, 1, 3})
        for (int const threads : {1, 2, 4}) {
          CAPTURE(workers, Nm, D, threads);
          struct Arriving : Waves {
            [[nodiscard]] sg::staleness::WaveSynchronous model() const {
              return {.in_flight = in_flight, .distance = distance};
            }
          };
          Arriving const waves{{workers, Nm, D}};
          auto const N = static_cast<std::size_t>(workers);
          sg::collective::ParameterServer const server(
              {.workers = workers, .shards = 2, .log = true});
          SlowSgd const slow{sgd};
          std::vector<std::vector<int>> const cuts{{2}, {1}, {1, 2, 3}, {}};
          std::vector<decltype(make(waves, server, 0, {}, 1, slow))> trainers;
          std::vector<std::vector<Batch>> batches(N);
          for (std::size_t n = 0; n < N; ++n) {
            trainers.push_back(make(waves, server, static_cast<int>(n), cuts[n], threads, slow));
            for (int stream = 0; stream < 2; ++stream)
              batches[n].push_back(
                  data(stream == 0 ? 11 : 3, static_cast<double>(n) + 10.0 * stream));
          }
          for (std::size_t stream = 0; stream < 2; ++stream) {
            std::vector<sg::Step> steps;
            for (std::size_t n = 0; n < N; ++n)
              steps.push_back(trainers[n].stream(batches[n][stream]));
            sg::run_together(std::move(steps));
          }
          Replay replay(server, N);
          auto const last = replay_streams(replay, sg::optimizer::Sgd{sgd},
                                           static_cast<std::size_t>(Nm), batches);
          for (auto& trainer : trainers) REQUIRE(weights(trainer) == last);
        }
}

TEST_CASE("train/ParameterServer: counts what the weights of each push lacked", "[train]") {
  using Counts = std::vector<std::uint64_t>;
  auto const first = [](Counts const& counts, std::size_t size) {
    Counts few(counts.begin(), counts.begin() + static_cast<std::ptrdiff_t>(size));
    std::uint64_t rest = 0;
    for (std::size_t k = size; k < counts.size(); ++k) rest += counts[k];
    CHECK(rest == 0);
    return few;
  };
  auto const train = [](auto const& model, sg::collective::ParameterServer const& server,
                        std::vector<std::size_t> const& order) {
    auto a = stepping(model, server, 0, sgd);
    auto b = stepping(model, server, 1, sgd);
    auto const batch = data(2);
    static_cast<void>(run(a.step(batch)));  // so that both have begun
    static_cast<void>(run(b.step(batch)));
    for (std::size_t const n : order) static_cast<void>(run((n == 0 ? a : b).step(batch)));
  };
  SECTION("asynchronous") {
    sg::collective::ParameterServer const server({.workers = 2});
    // b begins behind a's first push. Then a lacks the pushes that b makes between two of its own.
    train(sg::staleness::Asynchronous{}, server, {0, 1, 1, 1, 0, 0, 1});
    CHECK(first(server.missed(0), 4) == Counts{2, 1, 0, 1});
    CHECK(first(server.missed(1), 4) == Counts{3, 1, 1, 0});
    REQUIRE_THROWS_WITH(server.log(0), Catch::Matchers::Contains("remembers nothing"));
    REQUIRE_THROWS_WITH(server.missed(0, 7), Catch::Matchers::Contains("has 4 layers"));
    REQUIRE_THROWS_WITH(server.missed(2), Catch::Matchers::Contains("no worker 2"));
  }
  SECTION("in step and in turn") {
    for (bool const in_turn : {false, true}) {
      sg::collective::ParameterServer const server({.workers = 2});
      auto const steps = [&](auto model) {
        auto a = stepping(model, server, 0, sgd);
        auto b = stepping(model, server, 1, sgd);
        auto const batch = data(2);
        for (int step = 0; step < 5; ++step) sg::run_together(a.step(batch), b.step(batch));
      };
      in_turn ? steps(sg::staleness::RoundRobinSynchronous{}) : steps(sg::staleness::Synchronous{});
      CHECK(first(server.missed(0), 2) == (in_turn ? Counts{1, 4} : Counts{5, 0}));
      CHECK(first(server.missed(1), 2) == (in_turn ? Counts{0, 5} : Counts{5, 0}));
    }
  }
}
