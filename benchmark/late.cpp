// SPDX-License-Identifier: Apache-2.0
// What it costs that layers are late (staleness::OverlappedSynchronous).
//
//   compute   forward and backward passes of examples/vgg on each of two workers on a thread, half of
//             the bytes late; steps alternate with those of two workers that send nothing late
//   choice    the importance of every layer and the choice by it, on one thread, which a server does
//             in each step, and forward and backward passes of a step on one thread
// The rows compare medians of times of neighbouring steps.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <stagger/collective/parameter_server.hpp>
#include <stagger/engine/run_together.hpp>
#include <stagger/parameters/late_layers.hpp>
#include <stagger/stagger.hpp>
#include <stagger/staleness/overlapped_synchronous.hpp>

#include "support/rows.hpp"
#include "support/transformer.hpp"
#include "vgg/images.hpp"
#include "vgg/model/model.hpp"

namespace {

namespace sg = stagger;
namespace osp = sg::staleness::overlapped;
using Half = sg::staleness::OverlappedSynchronous<osp::ParameterGradientProduct, osp::SplitLayer,
                                                  osp::ShareLate>;

constexpr int rounds = 41;
constexpr vgg::Minibatch images{64, 1};  // the paper's batch
constexpr Half half{.budget = {0.5}};

vgg::Batch textures() {
  vgg::Batch batch;
  vgg::make_textures(1, 100, 10).training.draw(1, 0, images, batch);
  return batch;
}

/// Seconds of forward and backward passes, of the last step.
template <class Trainer> double computed_s(Trainer const& train) {
  double sum = 0;
  for (auto const& span : train.timeline().spans)
    if (sg::schedule::is_compute(span.action.kind)) sum += span.end_s - span.start_s;
  return sum;
}

template <class Model> auto worker(Model const& model, sg::collective::ServerWorker server) {
  return sg::Pipeline{vgg::make_model<float>({.minibatch = images}, 1)}.with(
      model, std::move(server), sg::optimizer::Sgd{.rate = 0.01}, sg::loss::CrossEntropy<float>{},
      sg::host::Threads{1}, sg::Options{.record = true});
}

void compute(benchmark::State& state) {
  auto const batch = textures();
  sg::collective::ParameterServer const late_server({.workers = 2, .shards = 4});
  sg::collective::ParameterServer const server({.workers = 2, .shards = 4});
  auto late = std::pair{worker(half, late_server.worker(0)), worker(half, late_server.worker(1))};
  sg::staleness::Synchronous const in_step;
  auto plain = std::pair{worker(in_step, server.worker(0)), worker(in_step, server.worker(1))};
  auto const timed = [&](auto& both) {
    sg::run_together(both.first.step(batch), both.second.step(batch));
    return (computed_s(both.first) + computed_s(both.second)) / 2;
  };
  for ([[maybe_unused]] auto _ : state) {
    std::vector<double> of_late, ratios;
    for (int round = -3; round < rounds; ++round) {
      double const late_s = timed(late);
      double const plain_s = timed(plain);
      if (round < 0) continue;
      of_late.push_back(late_s);
      ratios.push_back(late_s / plain_s);
    }
    state.SetIterationTime(bench::median(of_late));
    state.counters["of_plain"] = bench::median(ratios);
  }
}

/// Parameters of a pipeline as a server has them, with a gradient for each.
template <class Trainer> std::vector<sg::detail::LayerParameters> as_on_server(Trainer& train) {
  std::vector<sg::detail::LayerParameters> layers(train.parameters().size());
  for (std::size_t l = 0; l < layers.size(); ++l) {
    auto const values = train.parameters()[l].template values<float>();
    sg::List<sg::detail::ParameterDeclaration> declared;
    sg::detail::ParameterDeclaration d;
    d.name = "values";
    d.type = sg::ElementType::f32;
    d.size = values.size();
    auto const* const bytes = reinterpret_cast<std::byte const*>(values.data());
    d.initial.assign(bytes, values.size() * sizeof(float));
    declared.push_back(std::move(d));
    layers[l].adopt(std::move(declared), static_cast<int>(l), 0);
    auto* const gradient = static_cast<float*>(layers[l].views()[0].gradient);
    std::copy(values.begin(), values.end(), gradient);
  }
  return layers;
}

template <class Trainer, class Batch>
void choice(benchmark::State& state, Trainer train, Batch const& batch) {
  auto const layers = as_on_server(train);
  sg::detail::LateLayers late(sg::detail::late_calls_of<Half>->choice(&half),
                              sg::detail::bytes_to_send(layers), 1, 1, true);
  for ([[maybe_unused]] auto _ : state) {
    std::vector<double> chosen, ratios;
    for (int round = -3; round < rounds; ++round) {
      sg::run(train.step(batch));
      double const start_s = bench::now_s();
      for (std::size_t l = 0; l < layers.size(); ++l)
        late.add_score(l, late.choice().score({layers[l], 0, round + 3}));
      late.add_loss(0, 1);
      double const took_s = bench::now_s() - start_s;
      if (round < 0) continue;
      chosen.push_back(took_s);
      ratios.push_back(took_s / computed_s(train));
    }
    state.SetIterationTime(bench::median(chosen));
    state.counters["of_compute"] = bench::median(ratios);
  }
}

template <class Stages, class Loss> auto alone(Stages stages, Loss loss) {
  return std::move(stages).with(sg::optimizer::Sgd{.rate = 0.01}, std::move(loss),
                                sg::host::Threads{1}, sg::Options{.record = true});
}

}  // namespace

int main(int argc, char** argv) {
  bench::add("late/compute", 3, compute);
  bench::add("late/choice/gpt", 3, [](benchmark::State& state) {
    choice(state, alone(bench::transformer_pipeline(), gpt::CrossEntropy<float>{}),
           bench::transformer_batch(1));
  });
  bench::add("late/choice/vgg", 3, [](benchmark::State& state) {
    choice(state,
           alone(sg::Pipeline{vgg::make_model<float>({.minibatch = images}, 1)},
                 sg::loss::CrossEntropy<float>{}),
           textures());
  });
  bench::add("late/choice/linear", 3, [](benchmark::State& state) {
    choice(state, alone(sg::Pipeline{vgg::make_linear<float>(1)}, sg::loss::CrossEntropy<float>{}),
           textures());
  });
  auto const grade = [](bool met) { return met ? bench::Grade::passed : bench::Grade::failed; };
  return bench::run(
      argc, argv,
      {{"forward and backward of examples/vgg on 2 workers, half of the bytes late against none",
        "late/compute",
        [=](bench::Results const& results) {
          double const ratio = results.counter("late/compute", "of_plain");
          return bench::Line{
              bench::text("%.3f x (%.1f ms)", ratio, 1e3 * results.time_s("late/compute")),
              "at most 1.02 x", grade(ratio <= 1.02)};
        }},
       {"importance of all layers and choice of late ones, of the time of forward and backward: "
        "examples/gpt, examples/vgg with 64 images, one dense layer on them",
        "late/choice/.*", [=](bench::Results const& results) {
          auto const share = [&](char const* model) {
            return 100 * results.counter(std::string("late/choice/") + model, "of_compute");
          };
          double const most = std::max({share("gpt"), share("vgg"), share("linear")});
          return bench::Line{
              bench::text("%.2f, %.2f, %.2f %%", share("gpt"), share("vgg"), share("linear")),
              "at most 10 %", grade(most <= 10)};
        }}});
}
