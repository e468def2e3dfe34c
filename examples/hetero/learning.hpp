// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Workers that learn a task in virtual time: gradients are real, and the times are those of
///         a computation and a link.

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include <stagger/collective/parameter_server.hpp>
#include <stagger/core/random.hpp>
#include <stagger/engine/run_together.hpp>
#include <stagger/model/loss.hpp>
#include <stagger/partition/cuts.hpp>
#include <stagger/sim/virtual_clock.hpp>
#include <stagger/train/pipeline.hpp>

namespace learning {

namespace sg = stagger;

/// Gradient descent whose rate halves every so many steps.
struct HalvingSgd {
  using policy_tag = sg::OptimizerTag;
  static constexpr int states = 0;
  static constexpr bool element_wise = true;
  double rate = 0.1;
  double steps = 1e9;
  template <class T>
  void update(sg::OptimizerView<T> const& v, double scale, std::int64_t step) const noexcept {
    auto const by = static_cast<T>(eta(scale, step));
    for (std::size_t i = 0; i < v.size; ++i) v.next[i] = v.value[i] - by * v.gradient[i];
  }
  template <class T>
  void change(sg::OptimizerView<T> const& v, double scale, std::int64_t step) const noexcept {
    auto const by = static_cast<T>(eta(scale, step));
    for (std::size_t i = 0; i < v.size; ++i) v.next[i] = -by * v.gradient[i];
  }

 private:
  [[nodiscard]] double eta(double scale, std::int64_t step) const noexcept {
    return scale * rate * std::exp2(-std::floor(static_cast<double>(step - 1) / steps));
  }
};

/// How a run goes.
struct Settings {
  std::uint64_t seed = 1;
  int workers = 8;
  int batch = 16;  ///< examples of a worker's step
  int epochs = 20;
  int halving_epochs = 10;  ///< after which the rate halves
  int looks = 1;            ///< at the accuracy, in an epoch
  double rate = 0.6;
  bool full = false;              ///< each push moves the weights as far as a step of all workers
  bool pushes_are_steps = false;  ///< of the server's optimizer; else a push of everybody is
  double r = 0;  ///< time for one direction of a whole exchange, relative to a step's computation
  sg::sim::Duplex duplex = sg::sim::Duplex::full;
  double slowest = 1;  ///< how much longer the first worker computes
  double kept = 1;     ///< share of each layer's gradient that is pushed, its largest elements

  static constexpr double computation_s = 3;
  /// Of the server, for a model of so many bytes.
  [[nodiscard]] double link(std::size_t bytes) const {
    return r == 0 ? std::numeric_limits<double>::infinity()
                  : static_cast<double>(bytes) * workers / (r * computation_s);
  }
};

/// What a run shows, at each look.
struct Look {
  double accuracy = 0;  ///< points
  double time_s = 0;
  int steps = 0;           ///< of each worker
  std::uint64_t bits = 0;  ///< a digest of all parameters
};

/// Different for weights that differ in a bit, but for an accident.
template <class Trainer> std::uint64_t bits_of(Trainer& train) {
  std::uint64_t digest = 0;
  for (auto const& parameter : train.parameters())
    for (float const value : parameter.template values<float>())
      digest = sg::random_bits(digest, {std::bit_cast<std::uint32_t>(value)});
  return digest;
}

/// Trains with a staleness model whose workers take steps.
///
/// @code
///     struct Task {
///       auto model(Settings const&) const;              // logits of classes
///       std::size_t bytes() const;                      // of its parameters
///       int steps(Settings const&) const;               // of a worker in an epoch
///       auto shard(Settings const&, int worker) const;  // has `Batch const& at(int step)`
///       double accuracy(auto& trainer) const;           // on what is held out, in points
///     };
/// @endcode
template <class Task, class Model>
std::vector<Look> learn(Task const& task, Model const& model, Settings const& s) {
  sg::sim::Clock const clock({.rate = s.link(task.bytes()), .duplex = s.duplex});
  sg::collective::ServerOptions options{.workers = s.workers};
  if (s.full) options.weights.assign(static_cast<std::size_t>(s.workers), 1.0);
  sg::collective::ParameterServer const server(options);
  int const epoch = task.steps(s);
  HalvingSgd const optimizer{.rate = s.rate,
                             .steps = static_cast<double>(s.halving_epochs * epoch *
                                                          (s.pushes_are_steps ? s.workers : 1))};
  auto const make = [&](int n) {
    double const time_s = n == 0 ? s.slowest : 1;
    sg::sim::VirtualClock device;
    device.costs = sg::schedule::Costs::uniform(time_s, 2 * time_s, 0);
    device.clock = clock;
    return sg::Pipeline{task.model(s)}.with(sg::partition::Cuts{{}}, model, server.worker(n),
                                            sg::loss::CrossEntropy<float>{}, optimizer,
                                            std::move(device));
  };
  std::vector<decltype(make(0))> trainers;
  std::vector<decltype(task.shard(s, 0))> shards;
  for (int n = 0; n < s.workers; ++n) {
    trainers.push_back(make(n));
    shards.push_back(task.shard(s, n));
  }
  std::vector<Look> looks;
  std::vector<int> steps(static_cast<std::size_t>(s.workers));
  double looking_s = 0;  // which no worker spends
  for (int look = 1; look <= s.epochs * s.looks; ++look) {
    int const until = epoch * look / s.looks;
    std::vector<sg::Steps> all;
    for (std::size_t n = 0; n < trainers.size(); ++n)
      all.emplace_back([&, n](sg::Metrics const*) -> std::optional<sg::Step> {
        if (steps[n] == until) return std::nullopt;
        return trainers[n].step(shards[n].at(steps[n]++));
      });
    static_cast<void>(sg::run_together(std::move(all)));
    looks.push_back({.time_s = clock.now_s() - looking_s, .steps = until});
    looks.back().bits = bits_of(trainers[0]);  // waits for what is late, which takes time
    double const from_s = clock.now_s();
    looks.back().accuracy = task.accuracy(trainers[0]);
    looking_s += clock.now_s() - from_s;
  }
  return looks;
}

}  // namespace learning
