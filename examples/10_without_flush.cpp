// SPDX-License-Identifier: Apache-2.0
// Training without a flush: each stage updates as soon as it has a gradient, and the pipeline never
// drains between minibatches. A staleness model decides which weights each minibatch uses.
//
//     rank 0 | F0 F1 .. B0 F2 B1 F3 B2 ..      weight stashing: B1 uses the weights that F1 used,
//     rank 1 | .. F0 B0 F1 B1 F2 B2 F3 ..      although the update after B0 has changed them
//
// Build:  g++ -std=c++20 -O2 -I include examples/10_without_flush.cpp -pthread
// Prints: the loss of a stream of 400 minibatches, then of another
// expect: second stream: loss 0\.00
#include <cmath>
#include <cstdio>
#include <tuple>

#include <stagger/schedule/pipe_dream.hpp>
#include <stagger/stagger.hpp>
namespace sg = stagger;

struct Neuron {  // y = tanh(a x), one number
  using Input = float;
  using Output = float;
  struct Saved {
    float y = 0;
  };
  sg::Parameter<> a{"a", {1}};

  void forward(sg::Context& c, float const& x, float& y, Saved& saved) {
    y = saved.y = std::tanh(c[a][0] * x);
  }
  void backward(sg::Context& c, float const& x, float const& dy, float& dx, Saved& saved) {
    float const g = dy * (1 - saved.y * saved.y);
    dx = g * c[a][0];
    c.gradient(a)[0] += g * x;
  }
  auto parameters() { return std::tie(a); }
};

struct Square {
  using policy_tag = sg::LossTag;
  using Target = float;
  double terms(float const&) const { return 1; }
  double value(sg::Context&, float const& y, float const& t) const { return (y - t) * (y - t); }
  double value_and_gradient(sg::Context& c, float const& y, float const& t, double scale,
                            float& dy) const {
    dy = static_cast<float>(2 * scale) * (y - t);
    return value(c, y, t);
  }
};

int main() {
  auto train = sg::Pipeline{Neuron{}, Neuron{}}.with(
      sg::schedule::PipeDream{}, sg::staleness::WeightStashing{}, Square{},
      sg::optimizer::Sgd{.rate = 0.1}, sg::host::Threads{2});

  sg::Batch<float, float> batch;  // every microbatch is a minibatch of its own
  for (int i = 0; i < 400; ++i) {
    float const x = std::sin(static_cast<float>(i));
    batch.inputs.push_back(x);
    batch.targets.push_back(std::tanh(2 * std::tanh(3 * x)));
  }
  double const first = sg::run(train.stream(batch)).loss;
  double const second = sg::run(train.stream(batch)).loss;
  std::printf("first stream: loss %.6f\nsecond stream: loss %.6f, %lld updates\n", first, second,
              static_cast<long long>(train.steps()));
  for (auto const& cell : train.program(400).cells)
    std::printf("rank %d keeps %u versions of its weights\n", cell.rank, cell.versions);
}
