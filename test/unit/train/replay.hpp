// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   What a server remembers, carried out again in plain loops, one push after the other.

#include "catch.hpp"

#include <chrono>
#include <cstddef>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "workers_oracle.hpp"

namespace workers_oracle {

using sg::collective::ServerEvent;

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
  /// @param logs  [layers]
  Replay(std::vector<std::vector<ServerEvent>> logs, std::size_t workers) : workers_(workers) {
    for (std::size_t l = 0; l < layers; ++l) layers_.emplace_back(std::move(logs[l]), workers, l);
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

/// Steps of workers that push gradients, whose optimizer and state stand with the server; or changes
/// that their own optimizers make.
template <class Optimizer>
void replay_steps(Replay& replay, Optimizer const& optimizer,
                  std::vector<std::vector<Batch>> const& batches, sg::staleness::Pushes pushed) {
  bool const changes = pushed == sg::staleness::Pushes::changes;
  std::vector<OracleWorker<Optimizer>> workers(replay.workers());
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
        any = true;
        if (changes) {
          workers[n].batch = batches[n][step];
          workers[n].microbatches = workers[n].batch.inputs.size();
          workers[n].train(optimizer, replay.taken(n, step), 0, static_cast<int>(step) + 1);
          pushes[n].emplace_back();
          for (auto const& made : workers[n].changes) pushes[n].back().push_back(made.back());
          continue;
        }
        pushes[n].push_back(scaled(gradients(replay.taken(n, step), batches[n][step]),
                                   static_cast<float>(1.0 / static_cast<double>(N))));
      }
    any = replay.advance(
              [&](std::size_t n, std::size_t push, std::size_t l) {
                return push < pushes[n].size() ? &pushes[n][push][l] : nullptr;
              },
              [&](Numbers& values, Numbers const& gradient, std::size_t, std::size_t l) {
                if (changes) return add(values, gradient);
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

/// Of a server in this process.
inline std::vector<std::vector<ServerEvent>> logs_of(
    sg::collective::ParameterServer const& server) {
  std::vector<std::vector<ServerEvent>> logs;
  for (std::size_t l = 0; l < layers; ++l) logs.push_back(server.log(l));
  return logs;
}

/// Workers that drift apart: each takes its steps, now and then a little later. What they have then
/// are the bits of the server's log.
/// @param own     the workers of this process
/// @param server  whatever has workers
/// @param logs    () what the server remembers, once all workers of all processes have ended
template <class Model, class Server, class Logs>
void replay_drifting(Model const& model, int workers, std::vector<int> const& own,
                     Server const& server, Logs logs, std::vector<int> const& cuts, int threads) {
  CAPTURE(workers, cuts, threads);
  auto const N = static_cast<std::size_t>(workers);
  std::vector<std::vector<Batch>> batches(N);
  for (std::size_t n = 0; n < N; ++n)
    for (int step = 0; step < 8; ++step)
      batches[n].push_back(data(2, static_cast<double>(n) + 10.0 * step));
  std::vector<decltype(stepping(model, server, 0, adam))> trainers;
  for (int const n : own) trainers.push_back(stepping(model, server, n, adam, cuts, threads));
  std::vector<sg::Steps> steps;
  for (std::size_t k = 0; k < own.size(); ++k)
    steps.push_back([&, k, n = static_cast<std::size_t>(own[k]),
                     step = std::size_t{0}](sg::Metrics const*) mutable {
      if (step == batches[n].size()) return std::optional<sg::Step>{};
      if (step % 3 == n) std::this_thread::sleep_for(std::chrono::microseconds(200));
      return std::optional<sg::Step>(trainers[k].step(batches[n][step++]));
    });
  sg::run_together(std::move(steps));
  Replay replay(logs(), N);
  replay_steps(replay, adam, batches, model.pushes);
  for (std::size_t k = 0; k < own.size(); ++k) {  // taken behind its last step, while others go on
    auto const n = static_cast<std::size_t>(own[k]);
    REQUIRE(weights(trainers[k]) == replay.taken(n, batches[n].size()));
  }
}

}  // namespace workers_oracle
