// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   How long a step of workers takes in virtual time, by the sizes of a model's layers.
/// @source Chen et al., "OSP: Boosting Distributed Model Training with 2-stage Synchronization",
///         ICPP 2023.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <stagger/collective/parameter_server.hpp>
#include <stagger/core/tensor.hpp>
#include <stagger/engine/run_together.hpp>
#include <stagger/model/loss.hpp>
#include <stagger/partition/cuts.hpp>
#include <stagger/sim/virtual_clock.hpp>
#include <stagger/staleness/overlapped_synchronous.hpp>
#include <stagger/staleness/synchronous.hpp>
#include <stagger/train/pipeline.hpp>

#include "../stagger/networks.hpp"

namespace step_times {

namespace sg = stagger;
namespace osp = sg::staleness::overlapped;

inline constexpr double computation_s = 3;

/// Floats of each layer.
using Sizes = std::vector<std::size_t>;

/// The link of the server, and the workers that share it.
struct Link {
  double r = 1;  ///< time for one direction of a whole exchange, relative to a step's computation
  sg::sim::Sharing sharing = sg::sim::Sharing::fair;
  sg::sim::Duplex duplex = sg::sim::Duplex::full;
  int workers = 8;
};

/// A step of a worker, once it is under way.
struct Step {
  double all_s = 0;
  double wait_s = 0;  ///< of which: what is no computation
  [[nodiscard]] double communication() const { return wait_s / all_s; }
};

/// y = x + w, whatever the size of w.
struct Shift {
  using Input = sg::Tensor<float>;
  using Output = sg::Tensor<float>;
  struct Saved {};
  sg::Parameter<> weight;
  explicit Shift(std::size_t size) : weight("weight", std::vector<float>(size, 0.01F)) {}
  auto parameters() { return std::tie(weight); }
  void forward(sg::Context& context, Input const& x, Output& y, Saved&) {
    y.resize_like(x);
    for (std::size_t i = 0; i < x.size(); ++i) y[i] = x[i] + context[weight][i];
  }
  void backward(sg::Context& context, Input const&, Output const& dy, Input& dx, Saved&) {
    dx.resize_like(dy);
    for (std::size_t i = 0; i < dy.size(); ++i) {
      dx[i] = dy[i];
      context.gradient(weight)[i] += dy[i];
    }
  }
};

/// Runs workers with a staleness model that takes steps.
/// @pre each layer has at least four floats
template <class Model> Step timed(Model const& model, Sizes const& layers, Link const& link) {
  auto const floats = std::accumulate(layers.begin(), layers.end(), std::size_t{0});
  double const bytes = sizeof(float) * static_cast<double>(floats);
  sg::sim::Clock const clock({.rate = link.r == 0 ? std::numeric_limits<double>::infinity()
                                                  : bytes * link.workers / (link.r * computation_s),
                              .sharing = link.sharing,
                              .duplex = link.duplex});
  sg::collective::ParameterServer const server({.workers = link.workers});
  auto const make = [&](int n) {
    std::vector<Shift> stack;
    for (std::size_t const size : layers) stack.emplace_back(size);
    sg::sim::VirtualClock device;
    device.costs = sg::schedule::Costs::uniform(computation_s / 3, computation_s * 2 / 3, 0);
    device.clock = clock;
    return sg::Pipeline{sg::Sequential{std::move(stack)}}.with(
        sg::partition::Cuts{{}}, model, server.worker(n), sg::loss::MeanSquaredError<>{},
        std::move(device));
  };
  std::vector<decltype(make(0))> trainers;
  for (int n = 0; n < link.workers; ++n) trainers.push_back(make(n));
  sg::Batch<sg::Tensor<float>, sg::Tensor<float>> batch;
  batch.inputs.resize(1);
  batch.inputs[0].resize({1, 4});
  std::fill_n(batch.inputs[0].data(), batch.inputs[0].size(), 0.5F);
  batch.targets = batch.inputs;
  constexpr int first = 6, last = 16;  // steps of worker 0 between which time is measured
  double from_s = 0, to_s = 0;
  std::vector<sg::Steps> all;
  for (int n = 0; n < link.workers; ++n)
    all.emplace_back([&, n, step = 0](sg::Metrics const*) mutable -> std::optional<sg::Step> {
      if (n == 0 && step == first) from_s = clock.now_s();
      if (n == 0 && step == last) to_s = clock.now_s();
      if (step++ == last + 4) return std::nullopt;
      return trainers[static_cast<std::size_t>(n)].step(batch);
    });
  static_cast<void>(sg::run_together(std::move(all)));
  double const step_s = (to_s - from_s) / (last - first);
  return {step_s, step_s - computation_s};
}

/// The share of a step in which bulk synchronous workers exchange values.
/// @param r  for each worker on the link; one alone keeps the values itself and needs no link
inline double communication_of(int workers, double r, Sizes const& layers) {
  return timed(sg::staleness::Synchronous{}, layers,
               {.r = workers == 1 ? 0 : r * workers, .workers = workers})
      .communication();
}

/// The first layers of a model, as many as a share of its bytes holds.
/// @tparam Selection  of layers, whole ones or parts
template <class Selection = osp::FirstFit> auto late(double share, Sizes const& layers) {
  return sg::staleness::OverlappedSynchronous<osp::FixedImportance, Selection, osp::ShareLate>{
      .importance = {std::vector<double>(layers.size())}, .budget = {share}};
}
/// The share that hides most. @param ways  1: pushes and answers overlap; 2: they share the link
inline double best_share(double r, int ways) { return std::min(0.8, 1 / (ways * r)); }

/// What a step takes where layers are equal, with the share u late: the paper's model.
inline double closed_form(double r, double u, int ways) {
  double const c = r * computation_s;
  return computation_s + 2 * (1 - u) * c + std::max(0.0, ways * u * c - computation_s);
}

/// A network of the paper with the r of its cluster: eight workers, 10 Gbit/s.
struct Network {
  std::string name;
  Sizes layers;  ///< in proportion; a float stands for a thousand
  double r = 0;
};
/// The paper publishes no computing times. They are assumed: three passes of the multiply-adds of a
/// batch at half of a T4's 8.1 TFLOPS.
inline std::vector<Network> networks() {
  std::vector<Network> all;
  auto const add = [&](char const* name, tool::Network const& network, int batch) {
    double parameters = 0, macs = 0;
    Sizes layers;
    for (double const each : network.parameters) {
      parameters += each;
      layers.push_back(static_cast<std::size_t>(std::max(4.0, std::ceil(each / 1000))));
    }
    for (double const each : network.macs) macs += each;
    double const computed_s = 3 * 2 * macs * batch / (0.5 * 8.1e12);
    all.push_back({name, std::move(layers), 8 * 4 * parameters / 1.25e9 / computed_s});
  };
  add("ResNet-50", tool::resnet50(true, 10), 64);
  add("VGG-16", tool::vgg16(), 64);
  add("InceptionV3", tool::inception_v3(100), 64);
  add("ResNet-101", tool::resnet101(), 64);
  add("BERT-base", tool::bert_base(384), 12);
  return all;
}

}  // namespace step_times
