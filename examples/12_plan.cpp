// SPDX-License-Identifier: Apache-2.0
// A plan for two fast and two slow devices, training by that plan, and a new plan when a device is
// lost.
// expect: simulated  9[0-9]\.[0-9]
// expect: node 0  big    0 0
// expect: bound      80.00 ms, gap 13.4 %
// expect: 4 ranks, step 3, loss 0\.[0-9]+
// expect: without device 1
// expect: no plan fits

#include <cstdio>

#include <stagger/cluster/cluster.hpp>
#include <stagger/plan/auto.hpp>
#include <stagger/plan/replan.hpp>
#include <stagger/report/plan.hpp>
#include <stagger/stagger.hpp>
#include <stagger/train/planned.hpp>

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
  sg::cluster::Profile model{.name = "chain", .batch = 4};  // times and bytes for 4 samples
  for (double const work : {0.4, 1.0, 1.0, 1.0, 1.0, 0.6})
    model.layers.push_back({.forward_s = 1e-3 * work,
                            .backward_s = 2e-3 * work,
                            .activation_bytes = 800'000,
                            .parameter_bytes = 9'000'000});

  sg::cluster::Link const inside{.alpha_s = 1e-6, .bytes_per_s = 10e9};
  sg::cluster::Cluster boxes{.name = "two boxes",
                             .intra = {inside, inside},
                             .inter = {.alpha_s = 5e-6, .bytes_per_s = 1.2e9}};
  for (int d = 0; d < 2; ++d)
    boxes.devices.push_back({.kind = "big", .memory_bytes = 1'000'000'000, .speed = 1, .node = 0});
  for (int d = 0; d < 2; ++d)
    boxes.devices.push_back(
        {.kind = "small", .memory_bytes = 500'000'000, .speed = 0.5, .node = 1});

  sg::plan::Request request{.batch = 64, .microbatch = 4};
  sg::plan::Plan const plan = sg::plan::Auto{}.plan({model, boxes, request});
  std::printf("%s\n%s", sg::report::table(plan).c_str(), sg::report::picture(plan, boxes).c_str());

  sg::Planned const run = sg::planned(plan);  // partition, schedule, replicas, recomputation
  auto train = sg::Pipeline{sg::Sequential{std::vector<Scale>(6)}}.with(
      run.cuts, run.schedule, run.options, sg::host::Threads{run.ranks()},
      sg::loss::MeanSquaredError<>{}, sg::optimizer::Sgd{.rate = 0.02});

  sg::Batch<sg::Tensor<>, sg::Tensor<>> batch;
  for (int m = 0; m < run.microbatches; ++m) {
    batch.inputs.emplace_back(sg::Tensor<>({64U / static_cast<unsigned>(run.microbatches)}));
    batch.inputs.back().fill(1);
    batch.targets.push_back(batch.inputs.back());
    batch.targets.back().fill(2);  // the output to learn
  }
  double loss = 0;
  for (int step = 0; step < 4; ++step) loss = sg::run(train.step(batch)).loss;
  std::printf("\n%d ranks, step 3, loss %.4f\n", run.ranks(), loss);

  request.without = {1};
  sg::plan::Plan const less = sg::plan::Replan{}.plan(plan, {model, boxes, request});
  std::printf("\nwithout device 1\n%s", sg::report::picture(less, boxes).c_str());

  for (auto& device : boxes.devices) device.memory_bytes = 30'000'000;
  try {
    (void)sg::plan::Auto{}.plan({model, boxes, request});
  } catch (sg::plan::Infeasible const& no) {
    std::printf("\n%s\n", no.what());
  }
}
