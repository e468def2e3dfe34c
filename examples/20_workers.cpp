// SPDX-License-Identifier: Apache-2.0
// Two pipelines train one model through a parameter server: workers, each with data and cuts of its
// own. A staleness model says how far they may drift apart, and one may be your own.
//
//     worker 0: 2 stages, its half of the data --+
//                                                +-- server: the parameters of all
//     worker 1: 3 stages, its half of the data --+
//
// Build:  g++ -std=c++20 -O2 -I include examples/20_workers.cpp -pthread -o workers
// expect: waves: loss 0\.[0-9]+ -> 0\.00
// expect: slow start: loss 0\.[0-9]+ -> 0\.00
// expect: waves: worker 0 has pushed 900 layers, 57600 bytes
// expect: slow start: minibatches that lacked 0, 1, ... pushes of the other worker: 300 3 3 3 891
// expect: in step: loss 0\.[0-9]+ -> 0\.00
#include <cmath>
#include <cstdio>
#include <tuple>
#include <utility>
#include <vector>

#include <stagger/collective/parameter_server.hpp>
#include <stagger/engine/run_together.hpp>
#include <stagger/schedule/fifo.hpp>
#include <stagger/stagger.hpp>
#include <stagger/staleness/wave_synchronous.hpp>
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

// In step for the first 100 minibatches, then up to `later` behind the other workers.
struct SlowStart {
  using policy_tag = sg::StalenessTag;
  static constexpr bool synchronous = false;
  static constexpr auto pushes = sg::staleness::Pushes::changes;
  static constexpr auto adds = sg::staleness::Adds::in_worker_order;
  int later = 4;
  int microbatches() const { return 1; }
  int minibatches() const { return 1; }                       // in one push
  int version(int m, int) const { return m; }                 // own changes in what m sees
  int needs(int m) const { return m < 100 ? m : m - later; }  // pushes of every worker
};

// Every second example, from `first` on.
sg::Batch<float, float> half(int first, int count) {
  sg::Batch<float, float> batch;
  for (int i = first; i < 2 * count; i += 2) {
    float const x = std::sin(static_cast<float>(i));
    batch.inputs.push_back(x);
    batch.targets.push_back(std::tanh(2 * std::tanh(3 * std::tanh(x))));
  }
  return batch;
}

auto worker(sg::collective::ParameterServer const& server, int number, std::vector<int> cuts,
            auto model, auto schedule) {
  return sg::Pipeline{sg::Sequential{std::vector<Neuron>(3)}}.with(
      sg::partition::Cuts{std::move(cuts)}, schedule, model, server.worker(number), Square{},
      sg::optimizer::Sgd{.rate = 0.05}, sg::host::Threads{2});
}

double mean(std::vector<sg::Metrics> const& metrics) {
  return (metrics[0].loss + metrics[1].loss) / 2;
}

// Streams of 400 minibatches each, three times.
void stream(char const* name, auto model, int in_flight) {
  sg::collective::ParameterServer const server({.workers = 2});
  auto a = worker(server, 0, {2}, model, sg::schedule::Fifo{in_flight});
  auto b = worker(server, 1, {1, 2}, model, sg::schedule::Fifo{in_flight});
  auto const of_a = half(0, 400);
  auto const of_b = half(1, 400);
  double const first = mean(sg::run_together(a.evaluate(of_a), b.evaluate(of_b)));
  for (int i = 0; i < 3; ++i) sg::run_together(a.stream(of_a), b.stream(of_b));
  double const last = mean(sg::run_together(a.evaluate(of_a), b.evaluate(of_b)));
  std::printf("%s: loss %.4f -> %.4f\n", name, first, last);

  // What has crossed, and how stale the weights were that minibatches saw.
  auto const pushed = a.traffic().of(sg::TrafficKind::pushes);
  std::printf("%s: worker 0 has pushed %d layers, %d bytes\n", name,
              static_cast<int>(pushed.messages), static_cast<int>(pushed.bytes));
  auto lacked = a.staleness();
  while (lacked.back() == 0) lacked.pop_back();
  std::printf("%s: minibatches that lacked 0, 1, ... pushes of the other worker:", name);
  for (auto const count : lacked) std::printf(" %d", static_cast<int>(count));
  std::printf("\n");
}

int main() {
  stream("waves", sg::staleness::WaveSynchronous{.distance = 1}, 4);
  stream("slow start", SlowStart{}, 1);

  // Bulk synchronous parallelism: both take the same step.
  sg::collective::ParameterServer const server({.workers = 2});
  auto a = worker(server, 0, {2}, sg::staleness::Synchronous{}, sg::schedule::OneFOneB{});
  auto b = worker(server, 1, {1, 2}, sg::staleness::Synchronous{}, sg::schedule::OneFOneB{});
  auto const of_a = half(0, 8);
  auto const of_b = half(1, 8);
  double first = 0, last = 0;
  for (int i = 0; i < 600; ++i) {
    last = mean(sg::run_together(a.step(of_a), b.step(of_b)));
    if (i == 0) first = last;
  }
  std::printf("in step: loss %.4f -> %.4f\n", first, last);
}
