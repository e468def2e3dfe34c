// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Waves that are added on arrival, wherever the server is: the weights of each minibatch are
///         looked up in the server's log.

#include "catch.hpp"

#include <cstddef>
#include <utility>
#include <vector>

#include <stagger/partition/cuts.hpp>
#include <stagger/schedule/fifo.hpp>
#include <stagger/staleness/wave_synchronous.hpp>
#include <stagger/train/pipeline.hpp>

#include "replay.hpp"

namespace arriving_waves {

using namespace workers_oracle;

/// [minibatches] the weights with which a layer computed
using Seen = std::vector<Numbers>;

/// Notes the weights of each forward.
struct NotingLayer : Layer {
  Seen* seen;
  NotingLayer(int stage, Seen& noted) : Layer(stage), seen(&noted) {}
  void forward(sg::Context& context, Input const& x, Output& y, Saved& saved) {
    auto const w = context[weight];
    seen->emplace_back(w.begin(), w.end());
    Layer::forward(context, x, y, saved);
  }
};

/// @param seen  [layers], outlives the trainer
template <class Device>
auto make(sg::staleness::WaveSynchronous const& model, sg::collective::ServerWorker const& worker,
          std::vector<int> cuts, Device device, std::vector<Seen>& seen) {
  seen.resize(layers);
  std::vector<NotingLayer> stack;
  for (int l = 0; l < layers; ++l) stack.emplace_back(l, seen[static_cast<std::size_t>(l)]);
  return sg::Pipeline{sg::Sequential{std::move(stack)}}.with(
      sg::partition::Cuts{std::move(cuts)}, sg::schedule::Fifo{.in_flight = model.in_flight}, model,
      worker, Loss{}, sgd, std::move(device));
}

/// Looks up what each minibatch saw: weights that its worker had taken from the server, with the
/// waves of every worker that it needs, then its own waves that these lacked, then its own
/// minibatches. All of a wave see the same weights of the server, and none older ones than before.
/// @param batches  [workers][streams]
/// @param seen     [workers][layers], of all streams
/// @param ended    [workers] weights after the streams
inline void look_up(std::vector<std::vector<ServerEvent>> logs,
                    sg::staleness::WaveSynchronous const& model,
                    std::vector<std::vector<Batch>> const& batches,
                    std::vector<std::vector<Seen>> const& seen,
                    std::vector<std::vector<Numbers>> const& ended) {
  std::size_t const N = batches.size();
  auto const Nm = static_cast<std::size_t>(model.in_flight);
  std::vector<OracleWorker<sg::optimizer::Sgd>> workers(N);
  for (std::size_t n = 0; n < N; ++n) {
    std::size_t made = 0;
    for (Batch const& batch : batches[n]) {
      workers[n].batch = batch;
      for (std::size_t m = 0; m < batch.inputs.size(); ++m, ++made) {
        std::vector<Numbers> w;
        for (std::size_t l = 0; l < layers; ++l) w.push_back(seen[n][l].at(made));
        workers[n].train(sgd, w, m, static_cast<int>(made) + 1);
        for (std::size_t l = 0; l < layers; ++l)
          m % Nm == 0 ? workers[n].pushes[l].push_back(workers[n].changes[l].back())
                      : add(workers[n].pushes[l].back(), workers[n].changes[l].back());
      }
    }
  }
  Replay replay(std::move(logs), N);
  replay.advance(
      [&](std::size_t n, std::size_t push, std::size_t l) {
        return &workers[n].pushes[l].at(push);
      },
      [](Numbers& values, Numbers const& sum, std::size_t, std::size_t) { add(values, sum); });
  for (auto const& each : ended) REQUIRE(each == replay.last());

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
            if (layer.own(o, pushes) <
                before[o] + static_cast<std::size_t>(model.needs(static_cast<int>(m))))
              return false;
          std::size_t const own = m + 1 > Nm ? m + 1 - Nm : 0;
          std::size_t const has = layer.own(n, pushes) - before[n];
          if (has > own / Nm) return false;
          Numbers w = layer.after[pushes];
          for (std::size_t wave = has; wave < own / Nm; ++wave)
            add(w, workers[n].pushes[l][before[n] + wave]);
          for (std::size_t q = own / Nm * Nm; q < own; ++q) add(w, workers[n].changes[l][made + q]);
          return w == seen[n][l][made + m];
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
}

/// Trains two streams, and looks up what they saw.
/// @param worker     (number) -> the server's worker
/// @param device_of  (number)
/// @param logs       () what the server remembers
template <class Worker, class DeviceOf, class Logs>
void compare(sg::staleness::WaveSynchronous const& model, int workers, int minibatches,
             Worker worker, DeviceOf device_of, Logs logs) {
  CAPTURE(workers, model.in_flight, model.distance, minibatches);
  auto const N = static_cast<std::size_t>(workers);
  std::vector<std::vector<int>> const cuts{{2}, {1}, {1, 2, 3}, {}};
  std::vector<std::vector<Seen>> seen(N);
  std::vector<decltype(make(model, worker(0), {}, device_of(0), seen[0]))> trainers;
  std::vector<std::vector<Batch>> batches(N);
  for (std::size_t n = 0; n < N; ++n) {
    trainers.push_back(make(model, worker(static_cast<int>(n)), cuts[n % cuts.size()],
                            device_of(static_cast<int>(n)), seen[n]));
    for (int stream = 0; stream < 2; ++stream)
      batches[n].push_back(
          data(stream == 0 ? minibatches : 5, static_cast<double>(n) + 10.0 * stream));
  }
  for (std::size_t stream = 0; stream < 2; ++stream) {
    std::vector<sg::Step> steps;
    for (std::size_t n = 0; n < N; ++n) steps.push_back(trainers[n].stream(batches[n][stream]));
    static_cast<void>(sg::run_together(std::move(steps)));
  }
  std::vector<std::vector<Numbers>> ended;
  for (auto& trainer : trainers) ended.push_back(weights(trainer));
  look_up(logs(), model, batches, seen, ended);
}

}  // namespace arriving_waves
