// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Workers of one workload, from their settings to what they did.

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <stagger/engine/run_together.hpp>
#include <stagger/host/threads.hpp>
#include <stagger/partition/cuts.hpp>
#include <stagger/schedule/fifo.hpp>
#include <stagger/sim/virtual_clock.hpp>
#include <stagger/stagger.hpp>

#include "cluster_times.hpp"
#include "layers/by_work.hpp"
#include "loss_log.hpp"
#include "run.hpp"
#include "staleness_models.hpp"
#include "team.hpp"

namespace hetero {

namespace sg = stagger;

/// Trains a workload:
///
/// @code
///     struct Workload {
///       using Batch, Loss;                            // of its model; microbatches are minibatches
///       static constexpr char const* unit;            // of the terms of the loss
///       static constexpr double rate;                 // learning rate of all workers together
///       explicit Workload(Settings const&);
///       auto model() const;                           // the same each time
///       std::vector<double> work() const;             // [layers]
///       void draw(std::int64_t number, Batch&) const; // one minibatch for training
///       Batch held_out() const;
///     };
/// @endcode
template <class Workload> class Workers {
 public:
  /// @param progress  whether to show it
  Workers(Settings const& s, bool progress) : s_(s), progress_(progress), workload_(s) {
    if (s.timed()) times_ = times_of(s);
    layer_bytes_.resize(workload_.work().size());
    for (auto const& shape : sg::Pipeline{workload_.model()}.with().parameter_shapes())
      layer_bytes_[std::stoul(shape.name)] +=
          shape.bytes;  // its name begins with the layer's number
  }

  [[nodiscard]] Run operator()() {
    Run result;
    with_model(s_.sync, [&](auto const& entry) {
      auto const model = entry.make(numbers_of(s_));
      result = s_.timed()
                   ? run(model,
                         [&](auto const& clock, std::size_t n) {
                           return sg::sim::VirtualClock{.costs = times_->workers[n].costs,
                                                        .clock = clock};
                         })
                   : run(model, [](auto const&, std::size_t) { return sg::host::Threads{1}; });
    });
    return result;
  }

 private:
  using Batch = typename Workload::Batch;

  static std::size_t count(std::int64_t n) { return static_cast<std::size_t>(n); }

  /// @param device_of  a device for worker n on a clock
  template <class Model, class DeviceOf> Run run(Model const& model, DeviceOf device_of) {
    Run result = train_in_team(
        s_, rate(model), [&](Team const& team, Run& of) { train(model, device_of, team, of); });
    result.images = times_ ? times_->images : static_cast<double>(s_.batch);
    for (std::uint64_t const bytes : layer_bytes_)
      if (bytes != 0) result.layer_bytes.push_back(static_cast<double>(bytes));
    return result;
  }

  template <class Model, class DeviceOf>
  void train(Model const& model, DeviceOf device_of, Team const& team, Run& result) {
    bool const first = !team.own.empty() && team.own.front() == 0;
    std::size_t const minibatches = count(s_.steps * s_.in_flight);
    LossLog log(count(s_.workers), minibatches, team.own.size() * minibatches,
                progress_ && first ? Workload::unit : nullptr);
    sg::sim::Clock const clock(times_ ? links() : sg::sim::Links{});
    auto const make = [&](std::size_t n) {
      return sg::Pipeline{workload_.model()}.with(
          sg::partition::Cuts{cuts()}, schedule(n, model), model, team.worker(n),
          sg::optimizer::Sgd{.rate = rate(model)},
          NotedLoss<typename Workload::Loss>{
              .log = &log,
              .worker = n,
              .step_minibatches = Model::synchronous ? count(s_.in_flight) : 0},
          device_of(clock, n),
          sg::Options{
              .seed = static_cast<std::uint64_t>(s_.seed), .deadline_s = 600, .record = true});
    };
    std::vector<decltype(make(0))> trainers;
    for (std::size_t const n : team.own) trainers.push_back(make(n));
    if constexpr (Model::synchronous)
      take_steps(team, trainers, result);
    else
      take_streams(team, trainers, result);
    for (std::size_t k = 0; k < team.own.size(); ++k) {
      std::size_t const n = team.own[k];
      result.workers[n].losses = log.take(n);
      result.workers[n].staleness = trainers[k].staleness();
      for (std::size_t kind = 0; kind < sg::traffic_kinds; ++kind)
        result.workers[n].traffic[kind] =
            trainers[k].traffic().of(static_cast<sg::TrafficKind>(kind));
      if constexpr (!Model::synchronous) {
        result.workers[n].in_flight = count(s_.in_flight);
        result.workers[n].distance = count(s_.distance);
      }
      if (!times_) continue;
      result.workers[n].devices = times_->workers[n].devices;
      for (auto const& stage : times_->workers[n].costs.stages)
        result.workers[n].transfers_s.push_back(stage.transfer_s);
    }
    if (first) result.held_out = sg::run(trainers[0].evaluate(workload_.held_out())).loss;
  }

  template <class Trainer>
  void take_streams(Team const& team, std::vector<Trainer>& trainers, Run& result) {
    std::vector<Batch> batches(trainers.size());
    std::vector<sg::Step> streams;
    for (std::size_t k = 0; k < trainers.size(); ++k) {
      for (std::int64_t m = 0; m < s_.steps * s_.in_flight; ++m) draw(team.own[k], m, batches[k]);
      streams.push_back(trainers[k].stream(batches[k]));
    }
    team.start();
    static_cast<void>(sg::run_together(std::move(streams)));
    for (std::size_t k = 0; k < trainers.size(); ++k)
      append(trainers[k].timeline(), 0, 0, result.workers[team.own[k]].rows);
  }

  template <class Trainer>
  void take_steps(Team const& team, std::vector<Trainer>& trainers, Run& result) {
    std::vector<Batch> batches(trainers.size());
    std::vector<sg::Steps> workers;
    team.start();
    double const start_s = now_s();
    for (std::size_t k = 0; k < trainers.size(); ++k)
      workers.emplace_back([&, k, step = std::int64_t{0}, began_s = 0.0](
                               sg::Metrics const* before) mutable -> std::optional<sg::Step> {
        std::size_t const n = team.own[k];
        if (before != nullptr) {  // a virtual clock's timeline has its time
          double const from_s = s_.timed() ? 0 : began_s;
          append(trainers[k].timeline(), step - 1, from_s, result.workers[n].rows);
        }
        if (step == s_.steps) return std::nullopt;
        batches[k].inputs.clear();
        batches[k].targets.clear();
        for (std::int64_t m = 0; m < s_.in_flight; ++m)
          draw(n, step * s_.in_flight + m, batches[k]);
        ++step;
        began_s = now_s() - start_s;
        return trainers[k].step(batches[k]);
      });
    static_cast<void>(sg::run_together(std::move(workers)));
  }

  void append(sg::schedule::Timeline const& of_step, std::int64_t step, double from_s,
              Rows& to) const {
    to.resize(of_step.row_begin.size());
    for (std::size_t r = 0; r < to.size(); ++r)
      for (sg::schedule::Span span : of_step.row(r)) {
        bool const counts_pushes = !sg::schedule::is_compute(span.action.kind);
        span.action.microbatch += static_cast<int>(counts_pushes ? step : step * s_.in_flight);
        span.start_s += from_s;
        span.end_s += from_s;
        to[r].push_back(span);
      }
  }

  /// Adds a minibatch.
  void draw(std::size_t worker, std::int64_t minibatch, Batch& batch) const {
    Batch one;
    workload_.draw(minibatch * s_.workers + static_cast<std::int64_t>(worker), one);
    batch.inputs.push_back(std::move(one.inputs[0]));
    batch.targets.push_back(std::move(one.targets[0]));
  }

  template <class Model> [[nodiscard]] auto schedule(std::size_t n, Model const& model) const {
    if constexpr (Model::synchronous) {
      static_cast<void>(n);
      static_cast<void>(model);
      return sg::schedule::OneFOneB{};
    } else {
      sg::schedule::Fifo fifo{.in_flight = static_cast<int>(s_.in_flight)};
      if (times_) {
        fifo.costs = times_->workers[n].costs;
        fifo.gate = {
            .model = model, .links = {links()}, .layer_bytes = layer_bytes_, .cuts = cuts()};
        for (std::size_t other = 0; other < times_->workers.size(); ++other)
          if (other != n)
            fifo.gate.others.push_back({.costs = times_->workers[other].costs, .cuts = cuts()});
      }
      return fifo;
    }
  }

  /// So that one push of every worker moves the weights as far in each model: a server takes the
  /// mean of gradients, but the sum of changes.
  template <class Model> [[nodiscard]] double rate(Model const& model) const {
    double const rate = s_.rate > 0 ? s_.rate : Workload::rate;
    if constexpr (requires { model.pushes; })
      if (model.pushes == staleness::Pushes::changes)
        return rate / static_cast<double>(s_.workers * (Model::synchronous ? 1 : s_.in_flight));
    return rate;
  }

  /// A link that carries the pushes of this model in the time of the cluster's.
  [[nodiscard]] sg::sim::Links links() const {
    if (times_->pushes_s <= 0) return {};
    auto const bytes = std::accumulate(layer_bytes_.begin(), layer_bytes_.end(), std::uint64_t{0});
    return {.rate =
                static_cast<double>(bytes) * static_cast<double>(s_.workers) / times_->pushes_s};
  }

  [[nodiscard]] std::vector<int> cuts() const {
    auto const work = workload_.work();
    return layers::ByWork{work, static_cast<int>(s_.stages)}.cuts(static_cast<int>(work.size()));
  }

  Settings s_;
  bool progress_;
  Workload workload_;
  std::optional<ClusterTimes> times_{};       // of a virtual clock
  std::vector<std::uint64_t> layer_bytes_{};  // [layers] of parameters
};

}  // namespace hetero
