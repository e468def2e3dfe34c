// SPDX-License-Identifier: Apache-2.0
// Modules of libtorch in a pipeline: an ordinary training loop, and the same model, batches and
// rate as two stages on two threads. docs/torch.md shows how to build it.
//
// Prints: the loss of both after some steps, and whether the modules have learned the same
// uses: stagger::torch
// expect: ordinary loop 0\.[0-9]+
// expect: pipeline      0\.[0-9]+
// expect: same values: yes
#include <cmath>
#include <cstdio>
#include <utility>
#include <vector>

#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <stagger/schedule/zero_bubble_h1.hpp>
#include <stagger/stagger.hpp>
#include <stagger/torch/stage.hpp>

namespace nn = torch::nn;
namespace sg = stagger;

constexpr int steps = 20;
constexpr int microbatches = 4;

nn::Sequential make_net() {
  at::manual_seed(1);
  return nn::Sequential(nn::Linear(16, 64), nn::Tanh(), nn::Linear(64, 64), nn::Tanh(),
                        nn::Linear(64, 4));
}

at::Tensor loss(at::Tensor const& y, at::Tensor const& target) {
  return nn::functional::mse_loss(y, target);
}

double ordinary_loop(nn::Sequential net, at::Tensor const& x, at::Tensor const& target) {
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  auto const inputs = x.chunk(microbatches);
  auto const targets = target.chunk(microbatches);
  double last = 0;
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    last = 0;
    for (std::size_t m = 0; m < inputs.size(); ++m) {
      at::Tensor const part = loss(net->forward(inputs[m]), targets[m]) / microbatches;
      part.backward();
      last += part.item<double>();
    }
    optimizer.step();
  }
  return last;
}

double pipeline(nn::Sequential net, at::Tensor const& x, at::Tensor const& target) {
  std::vector<sg::torch::Stage> layers;
  for (auto& module : *net) layers.emplace_back(module);
  auto train = sg::Pipeline{sg::Sequential{std::move(layers)}}.with(
      sg::partition::Even{.stages = 2}, sg::schedule::ZeroBubbleH1{}, sg::host::Threads{2},
      sg::torch::Loss{loss}, sg::optimizer::Sgd{.rate = 0.1});
  sg::Batch<sg::torch::Value, sg::torch::Value> batch;
  for (auto& part : x.chunk(microbatches)) batch.inputs.emplace_back(part);
  for (auto& part : target.chunk(microbatches)) batch.targets.emplace_back(part);
  double last = 0;
  for (int step = 0; step < steps; ++step) last = sg::run(train.step(batch)).loss;
  int layer = 0;  // take the values back, to save them with libtorch, for instance
  for (auto& module : *net) sg::torch::copy_parameters(train.parameters(), layer++, *module.ptr());
  return last;
}

int main() {
  at::set_num_threads(1);  // each of the pipeline's threads computes by itself
  at::manual_seed(0);
  at::Tensor const x = at::randn({32, 16});
  at::Tensor const target = at::sin(x.slice(1, 0, 4));
  nn::Sequential const one = make_net(), other = make_net();
  std::printf("ordinary loop %.4f\n", ordinary_loop(one, x, target));
  std::printf("pipeline      %.4f\n", pipeline(other, x, target));
  bool same = true;
  for (std::size_t i = 0; i < one->parameters().size(); ++i)
    same = same && one->parameters()[i].allclose(other->parameters()[i], 1e-4, 1e-5);
  std::printf("same values: %s\n", same ? "yes" : "no");
}
