// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   What a server remembers, carried out again in plain loops, one push after the other.

#include "catch.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "forwarding_link.hpp"
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
  /// Calls `each(pushes of all)` for what a worker took that contained so many of its own pushes.
  template <class Each> void each_taken(std::size_t worker, std::size_t own, Each each) const {
    std::size_t count = 0;
    for (ServerEvent const& event : log) {
      if (static_cast<std::size_t>(event.worker) != worker) continue;
      if (event.kind == ServerEvent::Kind::added)
        ++count;
      else if (count == own)
        each(event.pushes);
    }
  }
  /// What a worker read behind so many of its own pushes; null, if it is not known yet.
  [[nodiscard]] Numbers const* read(std::size_t worker, std::size_t own) const {
    std::size_t last = log.size();
    each_taken(worker, own, [&](std::size_t pushes) { last = pushes; });
    return last < after.size() ? &after[last] : nullptr;
  }
  /// What a worker took with so many of its own pushes, and these values: the same from the log.
  [[nodiscard]] Numbers const* find(std::size_t worker, std::size_t own,
                                    Numbers const& values) const {
    Numbers const* found = nullptr;
    bool unknown = false;
    each_taken(worker, own, [&](std::size_t pushes) {
      if (pushes >= after.size())
        unknown = true;
      else if (after[pushes] == values)
        found = &after[pushes];
    });
    REQUIRE((found != nullptr || unknown));
    return found;
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

/// What a worker has taken in its streams, of one layer. Over a connection an answer is used only once
/// it has come, which the server does not know.
struct Taken {
  std::vector<std::uint32_t> own{};  // [snapshots] of its pushes in the stream
  std::vector<float> values{};       // [snapshots][elements]

  [[nodiscard]] Numbers at(std::size_t snapshot) const {
    auto const first = values.begin() + static_cast<std::ptrdiff_t>(snapshot * size);
    return {first, first + static_cast<std::ptrdiff_t>(size)};
  }
  static constexpr std::size_t size = width * width + width;
};
class Witness final : public Forwarding {
 public:
  /// @param taken  [layers]
  Witness(std::shared_ptr<sg::detail::ParameterLink> link, std::vector<Taken>& taken)
      : Forwarding(std::move(link)), taken_(taken) {}
  sg::detail::VersionTag take(std::size_t l, std::uint32_t rounds, std::byte* values) override {
    auto const tag = Forwarding::take(l, rounds, values);
    Taken& own = taken_[l];
    own.own.push_back(tag.own);
    own.values.resize(own.values.size() + Taken::size);
    std::memcpy(&*(own.values.end() - Taken::size), values, Taken::size * sizeof(float));
    return tag;
  }

 private:
  std::vector<Taken>& taken_;
};

/// Streams of workers that push a sum of changes for each wave.
/// @param taken  [workers][layers]
template <class Optimizer>
std::vector<Numbers> replay_streams(Replay& replay, Optimizer const& optimizer, std::size_t Nm,
                                    std::vector<std::vector<Batch>> const& batches,
                                    std::vector<std::vector<Taken>> const& taken) {
  std::size_t const N = replay.workers();
  std::vector<OracleWorker<Optimizer>> workers(N);
  std::vector<std::size_t> stream(N), m(N), made(N);
  std::vector<std::size_t> before(N),
      versions(N);  // pushes, and snapshots taken, before the stream
  // A worker's pushes are those of all streams, behind each other; its changes those of this one.
  auto const advance = [&](std::size_t n) {
    if (stream[n] == batches[n].size()) return false;
    Batch const& batch = batches[n][stream[n]];
    std::size_t const count = batch.inputs.size();
    std::size_t const own = m[n] + 1 > Nm ? m[n] + 1 - Nm : 0;
    std::vector<Numbers> w;
    for (std::size_t l = 0; l < layers; ++l) {
      // At first what it has read, then a snapshot for each wave, which may be one from before that.
      std::size_t contains = 0;
      Numbers const* values = nullptr;
      if (own / Nm == 0) {
        values = replay.layer(l).read(n, before[n]);
      } else {
        std::size_t const snapshot = versions[n] + own / Nm - 1;
        contains = taken[n][l].own.at(snapshot);
        REQUIRE(contains <= own / Nm);
        values = replay.layer(l).find(n, before[n] + contains, taken[n][l].at(snapshot));
      }
      if (values == nullptr) return false;
      w.push_back(*values);
      for (std::size_t c = contains; c < own / Nm; ++c)
        add(w[l], workers[n].pushes[l][before[n] + c]);
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
      before[n] += (count + Nm - 1) / Nm;
      versions[n] += own / Nm;
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
  for (std::size_t n = 0; n < N; ++n) {
    REQUIRE(stream[n] == batches[n].size());
    for (Taken const& each : taken[n]) REQUIRE(each.own.size() == versions[n]);
  }
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
  }
}

/// Waves that are added on arrival.
struct Arriving : Waves {
  [[nodiscard]] sg::staleness::WaveSynchronous model() const {
    return {.in_flight = in_flight, .distance = distance};
  }
};

/// Two streams of each worker, whose waves are added on arrival. In the end all have the bits of the
/// server's log.
/// @param own   the workers of this process
/// @param server  whatever has workers
/// @param logs    as of replay_drifting
/// @param all     (what each worker has taken, in this process) -> the same of all processes
/// @param make    (server, worker) -> trainer
template <class Optimizer, class Server, class Logs, class All, class Make>
void replay_waves(Waves const& waves, std::vector<int> const& own, int minibatches,
                  Optimizer const& optimizer, Server const& server, Logs logs, All all, Make make) {
  CAPTURE(waves.workers, waves.in_flight, minibatches);
  auto const N = static_cast<std::size_t>(waves.workers);
  std::vector<std::vector<Batch>> batches(N);
  for (std::size_t n = 0; n < N; ++n)
    for (int stream = 0; stream < 2; ++stream)
      batches[n].push_back(
          data(stream == 0 ? minibatches : 3, static_cast<double>(n) + 10.0 * stream));
  std::vector<std::vector<Taken>> taken(N, std::vector<Taken>(layers));
  std::vector<decltype(make(Through{}, 0))> trainers;
  for (int const n : own)
    trainers.push_back(make(Through{std::make_shared<Witness>(server.worker(n).link(),
                                                              taken[static_cast<std::size_t>(n)])},
                            n));
  for (std::size_t stream = 0; stream < 2; ++stream) {
    std::vector<sg::Step> steps;
    for (std::size_t k = 0; k < own.size(); ++k)
      steps.push_back(trainers[k].stream(batches[static_cast<std::size_t>(own[k])][stream]));
    sg::run_together(std::move(steps));
  }
  Replay replay(logs(), N);
  auto const last = replay_streams(replay, optimizer, static_cast<std::size_t>(waves.in_flight),
                                   batches, all(taken));
  for (auto& trainer : trainers) REQUIRE(weights(trainer) == last);
}
/// Of all workers in this process.
inline std::vector<std::vector<Taken>> const& all_here(
    std::vector<std::vector<Taken>> const& taken) {
  return taken;
}

}  // namespace workers_oracle
