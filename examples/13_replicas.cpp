// SPDX-License-Identifier: Apache-2.0
// Data parallelism: a stage on several ranks. Each processes some rows of every microbatch, and
// their gradients are all-reduced, in groups of layers, while the last backward pass still runs.
//
//     stage 0: six layers on two ranks; of 16 rows the first rank gets 15, the second 1
//     stage 1: two layers on one rank, all rows
//
// In this example an all-reduce takes 0.4 s and 1 ms per byte, and a layer has 64 bytes of
// gradients. One all-reduce per layer (layerwise) pays the start-up time often, and one for all
// (single) cannot overlap with the backward pass. The default measures layers and all-reduces for
// some steps, and then chooses the groups with which a step ends first.
//
// Build:  g++ -std=c++20 -O2 -ffp-contract=off -I include examples/13_replicas.cpp -pthread
// Prints: the time of a step with each grouping, and that parameters do not depend on it
// expect: layerwise  6 sums, step 16\.034 s
// expect: single     1 sums, step 15\.597 s
// expect: optimal    3 sums, step 15\.341 s
// expect: same bits as on threads: yes
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <tuple>
#include <vector>

#include <stagger/collective/all_reduce.hpp>
#include <stagger/collective/grouping.hpp>
#include <stagger/engine/replicas.hpp>
#include <stagger/report/summary.hpp>
#include <stagger/stagger.hpp>
namespace sg = stagger;

constexpr std::size_t width = 16;

struct Gain {  // y = a x, with one a for each column
  using Input = sg::Tensor<>;
  using Output = sg::Tensor<>;
  sg::Parameter<> a{"a", std::vector<float>(width, 1.1F)};

  void forward(sg::Context& c, Input const& x, Output& y, sg::NothingSaved&) {
    y.resize_like(x);
    for (std::size_t i = 0; i < x.size(); ++i) y[i] = c[a][i % width] * x[i];
  }
  void backward(sg::Context& c, Input const& x, Output const& dy, Input& dx, sg::NothingSaved&) {
    dx.resize_like(x);
    for (std::size_t i = 0; i < x.size(); ++i) {
      dx[i] = dy[i] * c[a][i % width];
      c.gradient(a)[i % width] += dy[i] * x[i];
    }
  }
  auto parameters() { return std::tie(a); }
};

template <class Grouping> auto pipeline(auto device, Grouping grouping) {
  return sg::Pipeline{sg::Sequential{std::vector<Gain>(8)}}.with(
      sg::partition::Cuts{{6}}, device, sg::schedule::OneFOneB{}, sg::loss::MeanSquaredError<>{},
      sg::optimizer::AdamW{.rate = 0.01}, sg::collective::AllReduce<Grouping>{grouping},
      sg::Options{.record = true, .replicas = {{15, 1}, 1}});
}

int main() {
  sg::Batch<sg::Tensor<>, sg::Tensor<>> batch;
  for (int m = 1; m <= 4; ++m) {  // 4 microbatches of 16 rows
    sg::Tensor<> x({16, width}), y({16, width});
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 7) / 7;
    for (std::size_t i = 0; i < y.size(); ++i) y[i] = x[i] * static_cast<float>(m);
    batch.inputs.push_back(x);
    batch.targets.push_back(y);
  }

  sg::sim::VirtualClock const clock{.costs = sg::schedule::Costs::uniform(1, 1, 1),
                                    .sum = {.startup_s = 0.4, .per_byte_s = 1e-3}};
  using namespace sg::collective::grouping;
  auto threaded = pipeline(sg::host::Threads{3}, Optimal{});
  for (int step = 0; step < 15; ++step) sg::run(threaded.step(batch));

  bool same = true;
  for (char const* const name : {"layerwise", "single", "optimal"}) {
    auto train = pipeline(clock, named(name));
    for (int step = 0; step < 15; ++step) sg::run(train.step(batch));
    auto const sums = train.reductions();
    std::printf(
        "%-9s %2zu sums, step %.3f s\n", name, sums.row(0).size(),
        std::max(sg::report::summarize(train.timeline()).makespan_s, sums.row(0).back().end_s));
    auto const a = train.parameters(), b = threaded.parameters();
    for (std::size_t p = 0; p < a.size(); ++p)
      same = same && std::memcmp(a[p].value.data(), b[p].value.data(), a[p].value.size()) == 0;
  }
  std::printf("same bits as on threads: %s\n", same ? "yes" : "no");
  return same ? 0 : 1;
}
