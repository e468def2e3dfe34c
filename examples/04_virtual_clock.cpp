// SPDX-License-Identifier: Apache-2.0
// Training in virtual time, in which stages and messages take as long as you specify.
//
// Stage 1 is three times as slow as the others, and a message takes 0.2 s:
//
//     stage 0 (1 s) --0.2 s--> stage 1 (3 s) --0.2 s--> stage 2 (1 s)
//
// The engine and the arithmetic are those of host threads, so the parameters have the same bits.
// Nothing sleeps: 20 steps of 57.8 virtual seconds take a fraction of a second.
//
// Build:  g++ -std=c++20 -O2 -ffp-contract=off -I include examples/04_virtual_clock.cpp -pthread
// Prints: the picture of the last step, and one line for each comparison
// expect: predicted 57\.800 s, simulated 57\.800 s
// expect: same bits as on threads: yes
#include <cstdio>
#include <cstring>
#include <tuple>

#include <stagger/report/summary.hpp>
#include <stagger/report/text.hpp>
#include <stagger/schedule/proof/evaluate.hpp>
#include <stagger/stagger.hpp>
namespace sg = stagger;

struct Scale {  // y = a x
  using Input = sg::Tensor<>;
  using Output = sg::Tensor<>;
  sg::Parameter<> a{"a", {1.5F}};

  void forward(sg::Context& c, Input const& x, Output& y, sg::NothingSaved&) {
    y.resize_like(x);
    for (std::size_t i = 0; i < x.size(); ++i) y[i] = c[a][0] * x[i];
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

auto pipeline(auto device) {
  return sg::Pipeline{Scale{}, Scale{}, Scale{}}.with(
      device, sg::schedule::OneFOneB{}, sg::loss::MeanSquaredError<>{},
      sg::optimizer::Sgd{.rate = 0.002}, sg::Options{.record = true});
}

int main() {
  sg::Batch<sg::Tensor<>, sg::Tensor<>> batch;
  for (int m = 1; m <= 6; ++m) {  // 6 microbatches; the model is to learn y = 8 x
    sg::Tensor<> x{1}, y{1};
    x.fill(static_cast<float>(m) / 4);
    y.fill(static_cast<float>(m) * 2);
    batch.inputs.push_back(x);
    batch.targets.push_back(y);
  }

  // Seconds for F, I, W and the message to the next stage.
  sg::schedule::StageCosts const quick{1, 1, 1, 0.2}, slow{3, 3, 3, 0.2};
  sg::schedule::Costs const costs{.stages = {quick, slow, quick}};

  auto simulated = pipeline(sg::sim::VirtualClock{.costs = costs});
  auto threaded = pipeline(sg::host::Threads{2});
  bool same = true;
  for (int step = 0; step < 20; ++step) {
    sg::run(simulated.step(batch));
    sg::run(threaded.step(batch));
    auto const a = simulated.parameters(), b = threaded.parameters();
    for (std::size_t p = 0; p < a.size(); ++p)
      same = same && std::memcmp(a[p].value.data(), b[p].value.data(), a[p].value.size()) == 0;
  }

  auto const table = sg::schedule::OneFOneB{}.table({.ranks = 3, .microbatches = 6});
  double const predicted_s = sg::schedule::evaluate(table, costs).makespan_s;
  double const simulated_s = sg::report::summarize(simulated.timeline()).makespan_s;
  std::printf("%s", sg::report::gantt(simulated.timeline(), {.width = 110}).c_str());
  std::printf("predicted %.3f s, simulated %.3f s\n", predicted_s, simulated_s);
  std::printf("same bits as on threads: %s\n", same ? "yes" : "no");
  return same ? 0 : 1;
}
