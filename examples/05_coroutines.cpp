// SPDX-License-Identifier: Apache-2.0
// Steps in your own coroutines: tasks that await steps and each other, errors, and cancellation.
//
//     run(fit) --awaits--> epoch --awaits--> train.step(batch)   runs on the caller's thread
//        ^                    ^                    |              and the pipeline's threads
//        +---- exception -----+---- exception -----+
//
// Build:  g++ -std=c++20 -O2 -I include examples/05_coroutines.cpp -pthread -o coroutines
// expect: after 3 epochs the loss is 0\.0
// expect: the step ended with: not a number, microbatch 2
// expect: parameters are those after step 30: yes
// expect: the next step works: loss 0\.0
// expect: the step was cancelled; parameters are those after step [0-9]+
#include <cmath>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include <stagger/stagger.hpp>
namespace sg = stagger;

struct Scale {  // y = a x; throws for NaN
  using Input = sg::Tensor<>;
  using Output = sg::Tensor<>;
  sg::Parameter<> a{"a", {1.5F}};

  void forward(sg::Context& c, Input const& x, Output& y, sg::NothingSaved&) {
    y.resize_like(x);
    for (std::size_t i = 0; i < x.size(); ++i) {
      if (std::isnan(x[i]))
        throw std::domain_error("not a number, microbatch " + std::to_string(c.microbatch()));
      y[i] = c[a][0] * x[i];
    }
  }
  void backward(sg::Context& c, Input const& x, Output const& dy, Input& dx, sg::NothingSaved&) {
    dx.resize_like(x);
    for (std::size_t i = 0; i < x.size(); ++i) {
      dx[i] = dy[i] * c[a][0];
      c.gradient(a)[0] += dy[i] * x[i];
    }
  }
  auto parameters() { return std::tie(a); }
};

using Batch = sg::Batch<sg::Tensor<>, sg::Tensor<>>;

sg::Task<double> epoch(auto& train, Batch const& batch) {
  sg::Metrics last;
  for (int step = 0; step < 10; ++step) last = co_await train.step(batch);
  co_return last.loss;
}

sg::Task<double> fit(auto& train, Batch const& batch, int epochs) {
  double loss = 0;
  for (int e = 0; e < epochs; ++e) loss = co_await epoch(train, batch);
  co_return loss;
}

sg::Task<> until_stopped(auto& train, Batch const& batch, sg::stop_token stop) {
  for (;;) co_await train.step(batch, stop);  // ends with an exception
}

std::vector<std::byte> values(auto& train) {
  std::vector<std::byte> all;
  for (auto const& parameter : train.parameters())
    all.insert(all.end(), parameter.value.begin(), parameter.value.end());
  return all;
}

int main() {
  auto train = sg::Pipeline{Scale{}, Scale{}}.with(
      sg::loss::MeanSquaredError<>{}, sg::optimizer::Sgd{.rate = 0.02}, sg::host::Threads{2});
  Batch batch;
  for (int m = 1; m <= 4; ++m) {  // the model is to learn y = 6 x
    sg::Tensor<> x{1}, y{1};
    x.fill(static_cast<float>(m) / 2);
    y.fill(static_cast<float>(m) * 3);
    batch.inputs.push_back(x);
    batch.targets.push_back(y);
  }
  std::printf("after 3 epochs the loss is %.6f\n", sg::run(fit(train, batch, 3)));

  // An exception thrown by any stage, on any thread, arrives here; the step is undone.
  Batch broken = batch;
  broken.inputs[2].fill(std::nanf(""));
  auto const before = values(train);
  try {
    sg::run(train.step(broken));
  } catch (std::domain_error const& error) {
    std::printf("the step ended with: %s\n", error.what());
  }
  std::printf("parameters are those after step %d: %s\n", static_cast<int>(train.steps()),
              values(train) == before ? "yes" : "no");
  std::printf("the next step works: loss %.6f\n", sg::run(train.step(batch)).loss);

  // Any thread may request that a running step stops.
  sg::stop_source stop;
  std::jthread const other([&stop] { stop.request_stop(); });
  try {
    sg::run(until_stopped(train, batch, stop.get_token()));
  } catch (sg::Error const& error) {
    std::printf("%s\n", error.what());
    return error.code() == sg::Errc::cancelled ? 0 : 1;
  }
}
