// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the tests of HetPipe's theorem and of its convergence train: workers that exchange waves, on one
// virtual clock, with a convex function whose minimum is known.
// Source: Park et al., "HetPipe", USENIX ATC 2020, section 6.
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <tuple>
#include <utility>
#include <vector>

#include <stagger/collective/parameter_server.hpp>
#include <stagger/engine/run_together.hpp>
#include <stagger/schedule/fifo.hpp>
#include <stagger/sim/clock.hpp>
#include <stagger/sim/virtual_clock.hpp>
#include <stagger/staleness/wave_synchronous.hpp>
#include <stagger/train/pipeline.hpp>

namespace hetpipe_theory {

namespace sg = stagger;

constexpr std::size_t size = 5;
using Vector = std::array<double, size>;

inline double dot(Vector const& a, Vector const& b) {
  double sum = 0;
  for (std::size_t i = 0; i < size; ++i) sum += a[i] * b[i];
  return sum;
}
/// a + factor b
inline Vector plus(Vector a, double factor, Vector const& b) {
  for (std::size_t i = 0; i < size; ++i) a[i] += factor * b[i];
  return a;
}

constexpr Vector best{0.6, -1.1, 0.3, 0.8, -0.4};  // w*, of which no function is above 0

/// Half the squared distance from w*.
inline double off(Vector const& w) {
  Vector const from_best = plus(w, -1, best);
  return dot(from_best, from_best) / 2;
}

/// What a worker's minibatches saw and gave, [minibatches].
struct Noted {
  std::vector<Vector> weights, gradients;
};

/// y = a w.
struct Line {
  using Input = Vector;
  using Output = double;
  Noted* noted;
  sg::Parameter<double> w{"w", std::vector<double>(size)};
  explicit Line(Noted& to) : noted(&to) {}
  auto parameters() { return std::tie(w); }
  void forward(sg::Context& c, Vector const& a, double& y, sg::NothingSaved&) {
    auto const values = c[w];
    Vector& seen = noted->weights.emplace_back();
    for (std::size_t i = 0; i < size; ++i) seen[i] = values[i];
    y = dot(a, seen);
  }
  void backward(sg::Context& c, Vector const& a, double const& dy, Vector& da, sg::NothingSaved&) {
    auto const gradient = c.gradient(w);
    noted->gradients.push_back(plus({}, dy, a));
    for (std::size_t i = 0; i < size; ++i) gradient[i] += dy * a[i];
    da = {};
  }
};

/// |y - b|: convex, and with |a| = 1 no subgradient is longer than 1.
struct Distance {
  using policy_tag = sg::LossTag;
  using Target = double;
  double terms(double const&) const { return 1; }
  double value(sg::Context&, double const& y, double const& b) const { return std::abs(y - b); }
  double value_and_gradient(sg::Context&, double const& y, double const& b, double scale,
                            double& dy) const {
    dy = y > b ? scale : -scale;
    return std::abs(y - b);
  }
};

/// eta_t = sigma / sqrt(t), where t counts the minibatches of all workers.
struct Falling {
  using policy_tag = sg::OptimizerTag;
  static constexpr int states = 0;
  static constexpr bool element_wise = true;
  double sigma = 1;
  double workers = 1;
  [[nodiscard]] double eta(double step) const { return sigma / std::sqrt(step * workers); }
  template <class T>
  void update(sg::OptimizerView<T> const& v, double scale, std::int64_t step) const noexcept {
    auto const rate = static_cast<T>(eta(static_cast<double>(step)) * scale);
    for (std::size_t i = 0; i < v.size; ++i) v.next[i] = v.value[i] - rate * v.gradient[i];
  }
};

struct Setting {
  int workers, in_flight, distance;
  [[nodiscard]] sg::staleness::WaveSynchronous waves() const {
    return {.in_flight = in_flight, .distance = distance};
  }
  [[nodiscard]] int s_local() const { return in_flight - 1; }
  [[nodiscard]] int s_global() const { return (distance + 2) * in_flight - 2; }
  /// K: minibatches of others and of its own that a minibatch may lack or have in addition.
  [[nodiscard]] int most_off() const { return s_local() + (workers - 1) * (s_global() + 1); }
  /// W: how far behind the first of them is at most.
  [[nodiscard]] int window() const { return (s_global() + 1) * workers - 1; }
};

/// As many random directions of length 1, with their products with w*.
inline sg::Batch<Vector, double> lines(int count, unsigned seed) {
  sg::Batch<Vector, double> batch;
  std::mt19937 random(seed);
  for (int m = 0; m < count; ++m) {
    Vector a{};
    for (double& x : a) x = static_cast<double>(random() % 2001) / 1000 - 1;
    a = plus({}, 1 / std::sqrt(dot(a, a)), a);
    batch.inputs.push_back(a);
    batch.targets.push_back(dot(a, best));
  }
  return batch;
}

/// A run, as it was seen.
struct Course {
  std::vector<sg::Batch<Vector, double>> batches{};  // [workers]
  std::vector<Noted> noted{};                        // [workers]
  std::vector<sg::schedule::Timeline> timelines{};   // [workers]
  std::vector<sg::collective::ServerEvent> log{};    // of the only layer
  double loss = 0;                                   // mean of all minibatches

  /// The updates one after the other, minibatch 0 of each worker first: w_t and what it adds.
  /// @param visit  (w_t before, worker, minibatch, w_t+1)
  template <class Visit> void in_reference_order(Falling const& falling, Visit visit) const {
    Vector w{};
    for (std::size_t m = 0; m < noted[0].gradients.size(); ++m)
      for (std::size_t n = 0; n < noted.size(); ++n) {
        double const eta = falling.eta(static_cast<double>(m + 1));
        Vector const next = plus(w, -eta, noted[n].gradients[m]);
        visit(w, n, m, next);
        w = next;
      }
  }
};

/// One worker is so many times as slow as the others.
struct Slow {
  int worker = 0;
  double times = 1;
};

/// Of the first worker; those of the next are one higher.
struct Seeds {
  unsigned jitter = 0, lines = 0;
};

/// @param each       minibatches of a worker
/// @param latency_s  of the link; a forward takes 1 s, a backward 2 s
template <class Model, class Loss, class Optimizer>
Course run(Setting const& of, Model const& model, Loss const& loss, Optimizer const& optimizer,
           int each, Slow const& slow, double latency_s, Seeds const& seeds = {}) {
  auto const workers = static_cast<std::size_t>(of.workers);
  Course course;
  course.noted.resize(workers);
  sg::sim::Clock const clock({.latency_s = latency_s});
  sg::collective::ParameterServer const server({.workers = of.workers, .log = true});
  auto const make = [&](int n) {
    double const slower = n == slow.worker ? slow.times : 1;
    return sg::Pipeline{Line(course.noted[static_cast<std::size_t>(n)])}.with(
        sg::schedule::Fifo{of.in_flight}, model, server.worker(n), loss, optimizer,
        sg::sim::VirtualClock{.costs = sg::schedule::Costs::uniform(slower, 2 * slower, 0),
                              .jitter = 0.3,
                              .seed = seeds.jitter + static_cast<unsigned>(n),
                              .clock = clock},
        sg::Options{.record = true});
  };
  std::vector<decltype(make(0))> trainers;
  std::vector<sg::Step> steps;
  for (int n = 0; n < of.workers; ++n) {
    trainers.push_back(make(n));
    course.batches.push_back(lines(each, seeds.lines + static_cast<unsigned>(n)));
  }
  for (std::size_t n = 0; n < workers; ++n) steps.push_back(trainers[n].stream(course.batches[n]));
  for (auto const& metrics : sg::run_together(std::move(steps)))
    course.loss += metrics.loss / of.workers;
  for (auto const& trainer : trainers) course.timelines.push_back(trainer.timeline());
  course.log = server.log(0);
  return course;
}

}  // namespace hetpipe_theory
