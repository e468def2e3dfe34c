// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   What a server remembers, carried out again in plain loops, one push after the other.

#include "catch.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
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

/// Of a server in this process.
inline std::vector<std::vector<ServerEvent>> logs_of(
    sg::collective::ParameterServer const& server) {
  std::vector<std::vector<ServerEvent>> logs;
  for (std::size_t l = 0; l < layers; ++l) logs.push_back(server.log(l));
  return logs;
}

/// [k] steps of a worker whose weights lacked k pushes of another, of as many as it had made, in the
/// layer that lacked most.
inline std::vector<std::uint64_t> lacks(Replay const& replay, std::size_t n, std::size_t other,
                                        std::size_t steps) {
  std::vector<std::uint64_t> counts(64);
  for (std::size_t step = 0; step < steps; ++step) {
    std::size_t most = 0;
    for (std::size_t l = 0; l < layers && n != other; ++l) {
      LayerReplay const& layer = replay.layer(l);
      most = std::max(most, step - std::min(step, layer.own(other, layer.takes[n][step])));
    }
    ++counts[most];
  }
  return counts;
}

/// Workers that drift apart: each takes its steps, now and then a little later. What they have then
/// are the bits of the server's log, which also knows what their weights lacked of each worker.
/// @param own   the workers of this process
/// @param logs  () what the server remembers, once all workers of all processes have ended
/// @param make  (worker) -> trainer, which has adam
template <class Logs, class Make>
void replay_drifting(sg::staleness::Pushes pushes, int workers, std::vector<int> const& own,
                     Logs logs, Make make) {
  CAPTURE(workers);
  auto const N = static_cast<std::size_t>(workers);
  std::vector<std::vector<Batch>> batches(N);
  for (std::size_t n = 0; n < N; ++n)
    for (int step = 0; step < 8; ++step)
      batches[n].push_back(data(2, static_cast<double>(n) + 10.0 * step));
  std::vector<decltype(make(0))> trainers;
  for (int const n : own) trainers.push_back(make(n));
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
  replay_steps(replay, adam, batches, pushes);
  for (std::size_t k = 0; k < own.size(); ++k) {  // taken behind its last step, while others go on
    auto const n = static_cast<std::size_t>(own[k]);
    REQUIRE(weights(trainers[k]) == replay.taken(n, batches[n].size()));
    for (std::size_t other = 0; other < N; ++other)
      REQUIRE(trainers[k].staleness(static_cast<int>(other)) ==
              lacks(replay, n, other, batches[n].size()));
  }
}

/// The weights with which a layer computed, of one minibatch after the other.
struct Seen {
  std::vector<float> values{};
  [[nodiscard]] Numbers at(std::size_t minibatch) const {
    constexpr std::ptrdiff_t size = width * width + width;
    auto const first = values.begin() + static_cast<std::ptrdiff_t>(minibatch) * size;
    return {first, first + size};
  }
};
/// Notes the weights of each forward.
struct NotingLayer : Layer {
  Seen* seen;
  NotingLayer(int stage, Seen& noted) : Layer(stage), seen(&noted) {}
  void forward(sg::Context& context, Input const& x, Output& y, Saved& saved) {
    auto const w = context[weight];
    seen->values.insert(seen->values.end(), w.begin(), w.end());
    Layer::forward(context, x, y, saved);
  }
};

/// A worker whose waves are added on arrival.
/// @param seen  [layers], outlives the trainer
template <class Device, class Optimizer>
auto make_noting(Waves const& waves, sg::collective::ServerWorker const& worker,
                 std::vector<int> cuts, Device device, Optimizer const& optimizer,
                 std::vector<Seen>& seen) {
  std::vector<NotingLayer> stack;
  for (int l = 0; l < layers; ++l) stack.emplace_back(l, seen[static_cast<std::size_t>(l)]);
  return sg::Pipeline{sg::Sequential{std::move(stack)}}.with(
      sg::partition::Cuts{std::move(cuts)}, sg::schedule::Fifo{.in_flight = waves.in_flight},
      sg::staleness::WaveSynchronous{.in_flight = waves.in_flight, .distance = waves.distance},
      worker, Loss{}, optimizer, std::move(device));
}

/// Looks up what each minibatch saw: weights that its worker had taken from the server, with the
/// waves of every worker that it needs, then its own waves that these lacked, then its own
/// minibatches. All of a wave see the same weights of the server, and none older ones than before.
/// @param batches  [workers][streams]
/// @param seen     [workers][layers], of all streams
/// @return         the weights behind all pushes
template <class Optimizer>
std::vector<Numbers> look_up(Replay& replay, Waves const& waves, Optimizer const& optimizer,
                             std::vector<std::vector<Batch>> const& batches,
                             std::vector<std::vector<Seen>> const& seen) {
  std::size_t const N = batches.size();
  auto const Nm = static_cast<std::size_t>(waves.in_flight);
  std::vector<OracleWorker<Optimizer>> workers(N);
  for (std::size_t n = 0; n < N; ++n) {
    std::size_t made = 0;
    for (Batch const& batch : batches[n]) {
      workers[n].batch = batch;
      for (std::size_t m = 0; m < batch.inputs.size(); ++m, ++made) {
        std::vector<Numbers> w;
        for (std::size_t l = 0; l < layers; ++l) w.push_back(seen[n][l].at(made));
        workers[n].train(optimizer, w, m, static_cast<int>(made) + 1);
        for (std::size_t l = 0; l < layers; ++l)
          m % Nm == 0 ? workers[n].pushes[l].push_back(workers[n].changes[l].back())
                      : add(workers[n].pushes[l].back(), workers[n].changes[l].back());
      }
    }
  }
  replay.advance(
      [&](std::size_t n, std::size_t push, std::size_t l) {
        return &workers[n].pushes[l].at(push);
      },
      [](Numbers& values, Numbers const& sum, std::size_t, std::size_t) { add(values, sum); });

  for (std::size_t n = 0; n < N; ++n)
    for (std::size_t l = 0; l < layers; ++l) {
      LayerReplay const& layer = replay.layer(l);
      auto const& takes = layer.takes[n];
      std::vector<std::size_t> before(N);  // pushes of streams before
      std::size_t made = 0, take = 0;
      for (std::size_t s = 0; s < batches[n].size(); ++s) {
        std::size_t const count = batches[n][s].inputs.size();
        auto const fits = [&](std::size_t m, std::size_t pushes) {
          for (std::size_t o = 0; o < N; ++o)
            if (layer.own(o, pushes) < before[o] + waves.needed(m)) return false;
          std::size_t const own = m + 1 > Nm ? m + 1 - Nm : 0;
          std::size_t const has = layer.own(n, pushes) - before[n];
          if (has > own / Nm) return false;
          Numbers w = layer.after[pushes];
          for (std::size_t wave = has; wave < own / Nm; ++wave)
            add(w, workers[n].pushes[l][before[n] + wave]);
          for (std::size_t q = own / Nm * Nm; q < own; ++q) add(w, workers[n].changes[l][made + q]);
          return w == seen[n][l].at(made + m);
        };
        for (std::size_t m = 0; m < count; ++m) {
          CAPTURE(n, l, s, m);
          if ((m + 1) % Nm == 0 || m == 0)  // it may take newer weights
            while (take < takes.size() && !fits(m, takes[take])) ++take;
          REQUIRE(take < takes.size());
          REQUIRE(fits(m, takes[take]));
        }
        made += count;
        for (std::size_t o = 0; o < N; ++o)
          before[o] += (batches[o][s].inputs.size() + Nm - 1) / Nm;
      }
    }
  return replay.last();
}

/// Two streams of each worker, whose waves are added on arrival: looks up what they saw. In the end
/// all have the bits of the server's log.
/// @param own   the workers of this process
/// @param logs  as of replay_drifting
/// @param all   (what each worker has seen, in this process) -> the same of all processes
/// @param make  (worker, seen) -> trainer, by make_noting
template <class Optimizer, class Logs, class All, class Make>
void replay_waves(Waves const& waves, std::vector<int> const& own, int minibatches,
                  Optimizer const& optimizer, Logs logs, All all, Make make) {
  CAPTURE(waves.workers, waves.in_flight, waves.distance, minibatches);
  auto const N = static_cast<std::size_t>(waves.workers);
  std::vector<std::vector<Batch>> batches(N);
  for (std::size_t n = 0; n < N; ++n)
    for (int const count : {minibatches, 5})
      batches[n].push_back(
          data(count, static_cast<double>(n) + 10.0 * static_cast<double>(batches[n].size())));
  std::vector<std::vector<Seen>> seen(N, std::vector<Seen>(layers));
  std::vector<decltype(make(0, seen[0]))> trainers;
  for (int const n : own) trainers.push_back(make(n, seen[static_cast<std::size_t>(n)]));
  for (std::size_t stream = 0; stream < 2; ++stream) {
    std::vector<sg::Step> steps;
    for (std::size_t k = 0; k < own.size(); ++k)
      steps.push_back(trainers[k].stream(batches[static_cast<std::size_t>(own[k])][stream]));
    sg::run_together(std::move(steps));
  }
  Replay replay(logs(), N);
  auto const last = look_up(replay, waves, optimizer, batches, all(seen));
  for (auto& trainer : trainers) REQUIRE(weights(trainer) == last);
}
/// Of all workers in this process.
inline std::vector<std::vector<Seen>> const& all_here(std::vector<std::vector<Seen>> const& seen) {
  return seen;
}

}  // namespace workers_oracle
