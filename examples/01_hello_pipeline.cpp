// SPDX-License-Identifier: Apache-2.0
// A stage of your own, a pipeline of two of them on two threads, a loss that falls.
//
//                        x          tanh(a x)         tanh(b tanh(a x))
//     8 microbatches ------> rank 0 ---------> rank 1 ----------------> loss
//
// Build:  g++ -std=c++20 -O2 -I include examples/01_hello_pipeline.cpp -pthread -o hello
// Prints: step   0  loss 0.213493
//         step  50  loss 0.002146
//         ...
//         step 200  loss 0.000223
// expect: step   0  loss 0\.21
// expect: step 200  loss 0\.0002
#include <cmath>
#include <cstdio>
#include <tuple>

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

int main() {
  auto train = sg::Pipeline{Neuron{}, Neuron{}}.with(
      sg::loss::MeanSquaredError<>{}, sg::optimizer::Sgd{.rate = 0.5}, sg::host::Threads{2});
  sg::Batch<sg::Tensor<>, sg::Tensor<>> batch;
  for (float v = -1; v < 1; v += 0.25F) {  // 8 microbatches of one number each
    sg::Tensor<> x{1}, y{1};
    x[0] = v;
    y[0] = std::tanh(2 * std::tanh(3 * v));  // what is to be learnt
    batch.inputs.push_back(x);
    batch.targets.push_back(y);
  }
  for (int step = 0; step <= 200; ++step) {
    double const loss = sg::run(train.step(batch)).loss;
    if (step % 50 == 0) std::printf("step %3d  loss %.6f\n", step, loss);
  }
}
