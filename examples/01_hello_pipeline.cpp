// SPDX-License-Identifier: Apache-2.0
// A stage of your own, a pipeline of two such stages on two threads, and a loss that falls.
//
//                        x          a x         b a x
//     8 microbatches ------> rank 0 -----> rank 1 -------> loss
//
// Build:  g++ -std=c++20 -O2 -I include examples/01_hello_pipeline.cpp -pthread -o hello
// Prints: step  0  loss 8.593750
//         step  1  loss 7.358462
//         ...
//         step 19  loss 0.000003
// expect: step  0  loss 8\.59
// expect: step 19  loss 0\.00000
#include <cstdio>
#include <stagger/stagger.hpp>
namespace sg = stagger;

struct Scale {  // y = a x, element by element
  using Input = sg::Tensor<>;
  using Output = sg::Tensor<>;
  sg::Parameter<> a{"a", {1}};
  auto parameters() { return std::tie(a); }
  void forward(sg::Context& c, Input const& x, Output& y, sg::NothingSaved&) {
    y.resize_like(x);
    for (std::size_t i = 0; i < x.size(); ++i) y[i] = c[a][0] * x[i];
  }
  void backward(sg::Context& c, Input const& x, Output const& dy, Input& dx, sg::NothingSaved&) {
    dx.resize_like(x);
    for (std::size_t i = 0; i < x.size(); ++i) dx[i] = c[a][0] * dy[i];
    for (std::size_t i = 0; i < x.size(); ++i) c.gradient(a)[0] += x[i] * dy[i];
  }
};

int main() {
  auto train = sg::Pipeline{Scale{}, Scale{}}.with(
      sg::loss::MeanSquaredError<>{}, sg::optimizer::Sgd{.rate = 0.05}, sg::host::Threads{2});
  sg::Batch<sg::Tensor<>, sg::Tensor<>> batch;
  for (float v = -1; v < 1; v += 0.25F) {  // 8 microbatches of one number each
    batch.inputs.push_back(sg::Tensor<>::of({v}));
    batch.targets.push_back(sg::Tensor<>::of({6 * v}));  // the model is to learn y = 6 x
  }
  for (int step = 0; step < 20; ++step)
    std::printf("step %2d  loss %.6f\n", step, sg::run(train.step(batch)).loss);
}
