// SPDX-License-Identifier: Apache-2.0
// A collective policy of your own: it decides which layers' gradients are all-reduced together
// while the last backward pass still runs.
//
//     one stage of four layers on two ranks; layers 0-1 and layers 2-3 are two groups (buckets)
//
// Build:  g++ -std=c++20 -O2 -ffp-contract=off -I include examples/11_own_collective.cpp -pthread
// Prints: the all-reduces of a step, and that parameters do not depend on the grouping
// expect: 2 sums instead of 4, same bits: yes
#include <cstdio>
#include <cstring>
#include <tuple>
#include <vector>

#include <stagger/collective/all_reduce.hpp>
#include <stagger/collective/grouping/layerwise.hpp>
#include <stagger/engine/replicas.hpp>
#include <stagger/stagger.hpp>
namespace sg = stagger;
using sg::collective::Backward, sg::collective::By, sg::collective::CostLine;
using Groups = std::vector<sg::collective::LayerGroup>;

struct Halves {
  using policy_tag = sg::CollectiveTag;
  By by = By::slices;
  bool shard_optimizer = false;
  int measured_steps = 0, renew_every = 0;  // this policy needs no measured times
  Groups groups(Backward const& stage, CostLine) const {
    int const n = stage.layers(), half = n / 2;
    return half == 0 ? Groups{{n, 1}} : Groups{{n, half + 1}, {half, 1}};
  }
};

struct Gain {  // y = a x
  using Input = sg::Tensor<>;
  using Output = sg::Tensor<>;
  sg::Parameter<> a{"a", {1.1F}};

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

auto pipeline(auto collective) {
  return sg::Pipeline{sg::Sequential{std::vector<Gain>(4)}}.with(
      sg::partition::Cuts{}, sg::host::Threads{2}, sg::loss::MeanSquaredError<>{}, collective,
      sg::Options{.record = true, .replicas = {2}});
}

int main() {
  sg::Tensor<> x({8, 1}), y({8, 1});
  for (std::size_t i = 0; i < x.size(); ++i) y[i] = 2 * (x[i] = static_cast<float>(i) / 8);
  sg::Batch<sg::Tensor<>, sg::Tensor<>> const batch{{x, x}, {y, y}};

  auto halves = pipeline(Halves{});
  auto layers =
      pipeline(sg::collective::AllReduce{.grouping = sg::collective::grouping::Layerwise{}});
  for (int step = 0; step < 10; ++step) {
    sg::run(halves.step(batch));
    sg::run(layers.step(batch));
  }
  bool same = true;
  auto const a = halves.parameters(), b = layers.parameters();
  for (std::size_t p = 0; p < a.size(); ++p)
    same = same && std::memcmp(a[p].value.data(), b[p].value.data(), a[p].value.size()) == 0;
  auto const merged = halves.reductions(), single = layers.reductions();
  std::printf("%zu sums instead of %zu, same bits: %s\n", merged.row(0).size(),
              single.row(0).size(), same ? "yes" : "no");
  return same ? 0 : 1;
}
