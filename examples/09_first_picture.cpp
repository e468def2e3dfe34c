// SPDX-License-Identifier: Apache-2.0
// From data to a trained model, a table and a picture: the program in docs/getting_started.md.
//
// The picture shows the best that the schedule can do above what was measured. The loss on held-out
// data shows whether the model has learned anything.
//
// Build:  g++ -std=c++20 -O2 -I include examples/09_first_picture.cpp -pthread -o first
// Prints: the loss before and after, and the table; writes first.svg
// expect: held out: loss 0\.[12][0-9]* before, 0\.00[0-9]* after
// expect: peak in flight, per rank +2 1 +2 1
#include <cmath>
#include <cstdio>
#include <tuple>
#include <vector>

#include <stagger/core/file.hpp>
#include <stagger/report/step_table.hpp>
#include <stagger/report/svg.hpp>
#include <stagger/schedule/proof/evaluate.hpp>
#include <stagger/stagger.hpp>
namespace sg = stagger;

struct Neuron {  // y = tanh(a x), element by element
  using Input = sg::Tensor<>;
  using Output = sg::Tensor<>;
  sg::Parameter<> a{"a", {1}};

  void forward(sg::Context& c, Input const& x, Output& y, sg::NothingSaved&) {
    y.resize_like(x);
    for (std::size_t i = 0; i < x.size(); ++i) y[i] = std::tanh(c[a][0] * x[i]);
  }
  void backward(sg::Context& c, Input const& x, Output const& dy, Input& dx, sg::NothingSaved&) {
    dx.resize_like(x);
    for (std::size_t i = 0; i < x.size(); ++i) {
      float const y = std::tanh(c[a][0] * x[i]);
      dx[i] = dy[i] * (1 - y * y) * c[a][0];
      c.gradient(a)[0] += dy[i] * (1 - y * y) * x[i];
    }
  }
  auto parameters() { return std::tie(a); }
};

/// Microbatches of 20000 numbers in [from, from + 2), and the outputs that the model is to learn.
sg::Batch<sg::Tensor<>, sg::Tensor<>> data(int microbatches, float from) {
  sg::Batch<sg::Tensor<>, sg::Tensor<>> batch;
  for (int m = 0; m < microbatches; ++m) {
    sg::Tensor<> x{20000}, y{20000};
    for (std::size_t i = 0; i < x.size(); ++i) {
      x[i] = from + static_cast<float>(i) / 10000;
      y[i] = std::tanh(2 * std::tanh(3 * x[i]));
    }
    batch.inputs.push_back(x);
    batch.targets.push_back(y);
  }
  return batch;
}

int main() {
  auto const batch = data(8, -1);
  auto const held_out = data(2, -0.99F);
  auto train = sg::Pipeline{Neuron{}, Neuron{}}.with(
      sg::loss::MeanSquaredError<>{}, sg::optimizer::Sgd{.rate = 0.5}, sg::host::Threads{2},
      sg::Options{.record = true});

  double const before = sg::run(train.evaluate(held_out)).loss;
  std::vector<sg::schedule::Timeline> steps;
  for (int step = 0; step < 100; ++step) {
    sg::run(train.step(batch));
    steps.push_back(train.timeline());
  }
  double const after = sg::run(train.evaluate(held_out)).loss;
  std::printf("held out: loss %.4f before, %.4f after\n\n", before, after);

  // The best that the schedule can do when stages take as long as they did here.
  auto const costs = sg::report::measured_costs(steps);
  auto const table = sg::schedule::OneFOneB{}.table({.ranks = 2, .microbatches = 8});
  auto const allowed = sg::schedule::evaluate(table, costs).timeline;
  std::printf("%s", sg::report::step_table({.predicted = sg::report::summarize(allowed),
                                            .measured = sg::report::summarize(steps.back())})
                        .c_str());
  sg::write_file("first.svg", sg::report::svg(allowed, steps.back()));
}
