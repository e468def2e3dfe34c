// SPDX-License-Identifier: Apache-2.0
// Activation recomputation (Options::recompute): less memory for one more forward pass.
//
//     keep everything   F keeps the input and each layer's activations, per microbatch in flight
//     recompute         F keeps only the input; before B it runs again, into shared buffers
//
// A partitioner splits 24 layers into 4 stages; there are 16 microbatches of 4 KiB.
//
// Build:  g++ -std=c++20 -O2 -ffp-contract=off -I include examples/07_recompute_memory.cpp -pthread
// Prints: memory for activations, gradients and parameters, for GPipe and 1F1B, with and without it
// expect: GPipe +no +3\.00 MiB
// expect: OneFOneB +yes +[0-9]+ KiB
// expect: same bits in all four: yes
#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>
#include <tuple>
#include <vector>

#include <stagger/report/format.hpp>
#include <stagger/report/table.hpp>
#include <stagger/stagger.hpp>
namespace sg = stagger;

struct Neuron {  // y = tanh(a x), element by element
  using Input = sg::Tensor<>;
  using Output = sg::Tensor<>;
  struct Saved {  // kept from F to B; the engine owns one per microbatch in flight
    sg::Tensor<> slope;
    [[nodiscard]] std::uint64_t bytes() const { return slope.bytes(); }  // counted by memory()
  };
  sg::Parameter<> a{"a", {1}};

  void forward(sg::Context& c, Input const& x, Output& y, Saved& saved) {
    y.resize_like(x);
    saved.slope.resize_like(x);
    for (std::size_t i = 0; i < x.size(); ++i) {
      y[i] = std::tanh(c[a][0] * x[i]);
      saved.slope[i] = 1 - y[i] * y[i];
    }
  }
  void backward(sg::Context& c, Input const& x, Output const& dy, Input& dx, Saved& saved) {
    dx.resize_like(x);
    for (std::size_t i = 0; i < x.size(); ++i) {
      dx[i] = dy[i] * saved.slope[i] * c[a][0];
      c.gradient(a)[0] += dy[i] * saved.slope[i] * x[i];
    }
  }
  auto parameters() { return std::tie(a); }
};

using Batch = sg::Batch<sg::Tensor<>, sg::Tensor<>>;

/// Trains 5 steps, adds a line to the table, and returns the parameters.
template <class Schedule>
std::vector<float> train(sg::report::TextTable& table, char const* name, Schedule schedule,
                         bool recompute, Batch const& batch) {
  auto train = sg::Pipeline{sg::Sequential{std::vector<Neuron>(24)}}.with(
      schedule, sg::partition::Even{.stages = 4}, sg::loss::MeanSquaredError<>{},
      sg::optimizer::Sgd{.rate = 0.1}, sg::Options{.recompute = recompute});
  for (int step = 0; step < 5; ++step) sg::run(train.step(batch));

  sg::Memory const memory = train.memory();
  auto const bytes = [](std::uint64_t n) {
    return sg::report::format_bytes(static_cast<double>(n));
  };
  table.add({name, recompute ? "yes" : "no", bytes(memory.activations), bytes(memory.gradients),
             bytes(memory.parameters)});
  std::vector<float> values;
  for (sg::ParameterState const& parameter : train.parameters())
    values.push_back(parameter.values<float>()[0]);
  return values;
}

int main() {
  Batch batch;
  for (int m = 0; m < 16; ++m) {
    sg::Tensor<> x{1024}, y{1024};
    for (std::size_t i = 0; i < x.size(); ++i) {
      x[i] = static_cast<float>(m) / 8 - 1 + static_cast<float>(i) / 8192;
      y[i] = x[i] / 2;
    }
    batch.inputs.push_back(x);
    batch.targets.push_back(y);
  }

  sg::report::TextTable table({"schedule", "recompute", "activations", "gradients", "parameters"});
  auto const first = train(table, "GPipe", sg::schedule::GPipe{}, false, batch);
  bool same = train(table, "GPipe", sg::schedule::GPipe{}, true, batch) == first;
  same = train(table, "OneFOneB", sg::schedule::OneFOneB{}, false, batch) == first && same;
  same = train(table, "OneFOneB", sg::schedule::OneFOneB{}, true, batch) == first && same;
  std::printf("%s", table.str().c_str());
  std::printf("same bits in all four: %s\n", same ? "yes" : "no");
  return same ? 0 : 1;
}
