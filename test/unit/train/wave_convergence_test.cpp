// SPDX-License-Identifier: Apache-2.0
// HetPipe's theorem: the regret of workers that exchange waves, with real gradients under a virtual
// clock, is below its bounds.
// Source: Park et al., "HetPipe", USENIX ATC 2020, section 6.
#include <stagger/staleness/wave_synchronous.hpp>

#include "catch.hpp"

#include <algorithm>
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
#include <stagger/train/pipeline.hpp>

namespace sg = stagger;

namespace {

constexpr std::size_t size = 5;
using Vector = std::array<double, size>;

double dot(Vector const& a, Vector const& b) {
  double sum = 0;
  for (std::size_t i = 0; i < size; ++i) sum += a[i] * b[i];
  return sum;
}

constexpr Vector best{0.6, -1.1, 0.3, 0.8, -0.4};  // w*, of which no function is above 0

/// y = a w. Notes which of its updates would be made with which sign.
struct Line {
  using Input = Vector;
  using Output = double;
  sg::Parameter<double> w{"w", std::vector<double>(size)};
  std::vector<Vector>* gradients = nullptr;
  auto parameters() { return std::tie(w); }
  void forward(sg::Context& c, Vector const& a, double& y, sg::NothingSaved&) {
    auto const values = c[w];
    y = 0;
    for (std::size_t i = 0; i < size; ++i) y += a[i] * values[i];
  }
  void backward(sg::Context& c, Vector const& a, double const& dy, Vector& da, sg::NothingSaved&) {
    auto const gradient = c.gradient(w);
    Vector own{};
    for (std::size_t i = 0; i < size; ++i) gradient[i] += own[i] = dy * a[i];
    gradients->push_back(own);
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
  [[nodiscard]] double s_local() const { return in_flight - 1; }
  [[nodiscard]] double s_global() const { return (distance + 2) * in_flight - 2; }
  /// Minibatches of others and of its own that a minibatch may lack or have in addition.
  [[nodiscard]] double most_off() const { return s_local() + (workers - 1) * (s_global() + 1); }
  [[nodiscard]] double window() const { return (s_global() + 1) * workers - 1; }
  /// Of the theorem; where nothing is stale at all, 1 for each worker.
  [[nodiscard]] double kappa() const { return workers * std::max(1.0, 2 * s_global() + s_local()); }
};

struct Regret {
  double value = 0;   // mean of f_t at the weights that its minibatch saw
  double finite = 0;  // bounds
  double theorem = 0;
};

/// @param total  minibatches of all workers
Regret run(Setting const& setting, int total) {
  int const each = total / setting.workers;
  double const first = std::sqrt(dot(best, best) / 2);  // M at the start, from w = 0
  Falling const falling{first / std::sqrt(setting.kappa()), static_cast<double>(setting.workers)};
  sg::sim::Clock const clock({.latency_s = 0.7});
  sg::collective::ParameterServer const server({.workers = setting.workers});
  sg::staleness::WaveSynchronous const waves{.in_flight = setting.in_flight,
                                             .distance = setting.distance};
  std::vector<std::vector<Vector>> gradients(static_cast<std::size_t>(setting.workers));
  auto const make = [&](int n) {
    double const slower = n == 0 ? 4 : 1;  // one worker
    return sg::Pipeline{Line{.gradients = &gradients[static_cast<std::size_t>(n)]}}.with(
        sg::schedule::Fifo{setting.in_flight}, waves, server.worker(n), Distance{}, falling,
        sg::sim::VirtualClock{.costs = sg::schedule::Costs::uniform(slower, 2 * slower, 0),
                              .jitter = 0.3,
                              .seed = static_cast<std::uint64_t>(n),
                              .clock = clock});
  };
  std::vector<decltype(make(0))> trainers;
  std::vector<sg::Batch<Vector, double>> batches(static_cast<std::size_t>(setting.workers));
  std::vector<sg::Step> steps;
  for (int n = 0; n < setting.workers; ++n) trainers.push_back(make(n));
  for (std::size_t n = 0; n < trainers.size(); ++n) {
    std::mt19937 random(static_cast<unsigned>(n) + 1);
    for (int m = 0; m < each; ++m) {
      Vector a{};
      for (double& x : a) x = static_cast<double>(random() % 2001) / 1000 - 1;
      double const length = std::sqrt(dot(a, a));
      for (double& x : a) x /= length;
      batches[n].inputs.push_back(a);
      batches[n].targets.push_back(dot(a, best));
    }
    steps.push_back(trainers[n].stream(batches[n]));
  }
  Regret regret;
  for (auto const& metrics : sg::run_together(std::move(steps)))
    regret.value += metrics.loss / setting.workers;
  // M along the reference sequence, which makes the updates of minibatch p of all workers, then p + 1.
  Vector w{};
  double m2 = first * first;
  for (int p = 0; p < each; ++p)
    for (auto const& own : gradients) {
      double off = 0;
      for (std::size_t i = 0; i < size; ++i) {
        w[i] -= falling.eta(p + 1) * own[static_cast<std::size_t>(p)][i];
        off += (w[i] - best[i]) * (w[i] - best[i]) / 2;
      }
      m2 = std::max(m2, off);
    }
  double const t = static_cast<double>(each) * setting.workers, m = std::sqrt(m2);
  regret.finite = (falling.sigma * std::sqrt(t) + m2 * std::sqrt(t) / falling.sigma +
                   falling.sigma * setting.most_off() * (setting.window() + 2 * std::sqrt(t))) /
                  t;
  regret.theorem = 4 * m * std::sqrt(setting.kappa() / t);
  return regret;
}

}  // namespace

TEST_CASE("train/HetPipe C21: the regret is below the bounds, and falls with the root of time",
          "[train]") {
  for (Setting const& setting :
       {Setting{1, 1, 0}, Setting{1, 4, 0}, Setting{4, 1, 0}, Setting{4, 1, 3}, Setting{4, 4, 0},
        Setting{4, 4, 1}, Setting{2, 3, 2}}) {
    Regret const few = run(setting, 1600), many = run(setting, 6400);
    CAPTURE(setting.workers, setting.in_flight, setting.distance, few.value, few.finite,
            few.theorem, many.value, many.finite, many.theorem);
    CHECK(few.value > 0);
    for (Regret const& regret : {few, many}) {
      CHECK(regret.value <= regret.finite);
      CHECK(regret.value <= regret.theorem);
    }
    CHECK(2 * many.value <= few.value);
  }
}
