// SPDX-License-Identifier: Apache-2.0
// Park et al., "HetPipe", USENIX ATC 2020, section 6: what the weights of a minibatch lack and have
// too much, and the equation that the proof of convergence sums up.
#include <stagger/staleness/wave_synchronous.hpp>

#include "catch.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <set>
#include <tuple>
#include <vector>

#include <stagger/collective/parameter_server.hpp>
#include <stagger/core/random.hpp>
#include <stagger/engine/run_together.hpp>
#include <stagger/schedule/fifo.hpp>
#include <stagger/sim/virtual_clock.hpp>
#include <stagger/train/pipeline.hpp>

namespace sg = stagger;

namespace {

constexpr std::size_t dimension = 6;
using Vector = std::vector<double>;

double dot(Vector const& a, Vector const& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}
Vector minus(Vector a, Vector const& b) {
  for (std::size_t i = 0; i < a.size(); ++i) a[i] -= b[i];
  return a;
}

/// Worker n of N, minibatch m, both from 0, is example t = m N + n + 1 of the reference order.
std::size_t number(std::size_t m, std::size_t n, std::size_t N) { return m * N + n + 1; }
Vector direction(std::size_t t) {
  Vector a(dimension);
  for (std::size_t i = 0; i < dimension; ++i)
    a[i] = static_cast<double>(sg::random_bits(3, {t, i}) % 2001) / 1000 - 1;
  double const length = std::sqrt(dot(a, a));
  for (double& each : a) each /= length;
  return a;
}
Vector const best{1, -0.5, 0.25, 2, -1, 0.75};

/// What is seen while workers run.
struct Course {
  std::size_t N = 1;
  double sigma = 1;
  std::vector<std::vector<Vector>> weights;  // [workers][minibatches]
  std::vector<std::vector<double>> signs;    // likewise
  [[nodiscard]] double eta(std::size_t t) const {
    return sigma / std::sqrt(static_cast<double>(t));
  }
};

/// f_t(w) = |a_t w - b_t|, whose gradient has the step's size in it.
struct Example {
  using Input = Vector;
  using Output = double;
  struct Saved {};
  sg::Parameter<double> weight{"weight", Vector(dimension)};
  Course* course;
  std::size_t worker;
  Example(Course* of, std::size_t n) : course(of), worker(n) {}
  auto parameters() { return std::tie(weight); }
  void forward(sg::Context& context, Vector const& a, double& y, Saved&) {
    auto const w = context[weight];
    course->weights[worker].emplace_back(w.begin(), w.end());
    y = dot(a, course->weights[worker].back());
  }
  void backward(sg::Context& context, Vector const& a, double const& dy, Vector&, Saved&) {
    auto const m = static_cast<std::size_t>(context.microbatch());
    course->signs[worker].push_back(dy);
    double const step = course->eta(number(m, worker, course->N)) * dy;
    auto const gradient = context.gradient(weight);
    for (std::size_t i = 0; i < dimension; ++i) gradient[i] += step * a[i];
  }
};
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

/// Waves without a gate.
struct Ungated : sg::staleness::WaveSynchronous {
  [[nodiscard]] constexpr int needs(int) const noexcept { return 0; }
};

struct Numbers {
  std::size_t N, Nm, D;
  [[nodiscard]] std::size_t s_local() const { return Nm - 1; }
  [[nodiscard]] std::size_t s_global() const { return (D + 2) * Nm - 2; }
};

/// What the run showed.
struct Result {
  bool bounded = true;    // what weights lack, and have too much
  double identity = 0;    // the largest relative error of the sum that the proof begins with
  std::size_t worst = 0;  // missing and extra updates of an example, the most
};

/// Runs workers on one clock, of which one is `slow` times as slow, and looks at every minibatch.
template <class Model>
Result run(Numbers const& of, Model const& model, double slow, std::size_t count, double sigma) {
  auto const [N, Nm, D] = of;
  Course course{N, sigma, std::vector<std::vector<Vector>>(N), std::vector<std::vector<double>>(N)};
  sg::sim::Clock const clock;
  sg::collective::ParameterServer const server({.workers = static_cast<int>(N), .log = true});
  auto const make = [&](std::size_t n) {
    sg::sim::VirtualClock device;
    double const times = n == 0 ? slow : 1;
    device.costs = sg::schedule::Costs::uniform(times, 2 * times, 0);
    device.jitter = 0.3;
    device.seed = n;
    device.clock = clock;
    return sg::Pipeline{Example(&course, n)}.with(
        sg::schedule::Fifo{.in_flight = static_cast<int>(Nm)}, model,
        server.worker(static_cast<int>(n)), Distance{}, sg::optimizer::Sgd{.rate = 1}, device);
  };
  std::vector<decltype(make(0))> trainers;
  std::vector<sg::Batch<Vector, double>> batches(N);
  for (std::size_t n = 0; n < N; ++n) {
    trainers.push_back(make(n));
    for (std::size_t m = 0; m < count; ++m) {
      batches[n].inputs.push_back(direction(number(m, n, N)));
      batches[n].targets.push_back(dot(batches[n].inputs.back(), best));
    }
  }
  std::vector<sg::Step> steps;
  for (std::size_t n = 0; n < N; ++n) steps.push_back(trainers[n].stream(batches[n]));
  sg::run_together(std::move(steps));

  // The updates, and the weights of the reference order.
  std::size_t const T = N * count;
  std::vector<Vector> g(T + 1), w{Vector(dimension), Vector(dimension)};
  for (std::size_t t = 1; t <= T; ++t) {
    g[t] = direction(t);
    for (double& each : g[t]) each *= course.signs[(t - 1) % N][(t - 1) / N];
    Vector next = w[t];
    for (std::size_t i = 0; i < dimension; ++i) next[i] -= course.eta(t) * g[t][i];
    w.push_back(next);
  }
  auto const half_square = [&](Vector const& x) {
    Vector const off = minus(x, best);
    return dot(off, off) / 2;
  };
  Result result;

  // What the weights of each minibatch contained, as the server remembers it.
  std::vector<std::vector<std::size_t>> before;  // [pushes][workers] pushes before it
  std::vector<std::vector<std::vector<std::size_t>>> taken(N);  // [workers][takes][workers]
  std::vector<std::size_t> pushes(N);
  for (auto const& event : server.log(0)) {
    auto const n = static_cast<std::size_t>(event.worker);
    if (event.kind == sg::collective::ServerEvent::Kind::added)
      ++pushes[n];
    else
      taken[n].push_back(pushes);
  }
  std::size_t const K = of.s_local() + (N - 1) * (of.s_global() + 1);
  std::size_t const W = (of.s_global() + 1) * N - 1;
  for (std::size_t m = 0; m < count; ++m)
    for (std::size_t n = 0; n < N; ++n) {
      std::size_t const t = number(m, n, N);
      std::size_t const own = m + 1 > Nm ? m + 1 - Nm : 0;
      std::set<std::size_t> lacks, extra;
      Vector seen(dimension);
      for (std::size_t o = 0; o < N; ++o) {
        std::size_t const has = o == n ? own : std::min(count, taken[n][own / Nm][o] * Nm);
        // Staleness towards one other worker, and how far that one may be seen to lead.
        if (o != n && has + of.s_global() < m) result.bounded = false;
        if (o != n && has > m + (D + 1) * Nm) result.bounded = false;
        for (std::size_t q = 0; q < count; ++q) {
          std::size_t const i = number(q, o, N);
          if (q < has)
            for (std::size_t k = 0; k < dimension; ++k) seen[k] -= course.eta(i) * g[i][k];
          if (q >= has && i < t) lacks.insert(i);
          if (q < has && i >= t) extra.insert(i);
        }
      }
      if (lacks.size() + extra.size() > K) result.bounded = false;
      result.worst = std::max(result.worst, lacks.size() + extra.size());
      std::size_t first = t;
      if (!lacks.empty()) first = std::min(first, *lacks.begin());
      if (!extra.empty()) first = std::min(first, *extra.begin());
      if (first + W < t) result.bounded = false;
      Vector const off = minus(course.weights[n][m], seen);
      REQUIRE(dot(off, off) < 1e-18);  // it is what the server says it was
      // The equation that the proof sums up.
      Vector const from_best = minus(course.weights[n][m], best);
      double right = (half_square(w[t]) - half_square(w[t + 1])) / course.eta(t) +
                     course.eta(t) * dot(g[t], g[t]) / 2;
      for (std::size_t const i : lacks) right += course.eta(i) * dot(g[i], g[t]);
      for (std::size_t const i : extra) right -= course.eta(i) * dot(g[i], g[t]);
      double const left = dot(g[t], from_best);
      result.identity = std::max(result.identity,
                                 std::abs(left - right) / std::max({1.0, std::abs(left), right}));
    }
  return result;
}

}  // namespace

TEST_CASE(
    "train/WaveSynchronous: staleness is bounded as published, and the proof's equation holds",
    "[train]") {
  for (Numbers const of : {Numbers{1, 1, 0},
                           {1, 4, 0},
                           {4, 1, 0},
                           {4, 1, 3},
                           {4, 4, 0},
                           {4, 4, 1},
                           {2, 3, 2},
                           {3, 2, 1}}) {
    CAPTURE(of.N, of.Nm, of.D);
    Result const result = run(of,
                              sg::staleness::WaveSynchronous{.in_flight = static_cast<int>(of.Nm),
                                                             .distance = static_cast<int>(of.D)},
                              4, 100, 0.3);
    CAPTURE(result.worst);
    CHECK(result.bounded);
    CHECK(result.identity < 1e-9);
  }
}

TEST_CASE("train/WaveSynchronous: without the gate, a worker ten times as slow breaks the bounds",
          "[train]") {
  for (Numbers const of : {Numbers{4, 1, 3}, {4, 4, 1}, {2, 3, 2}}) {
    CAPTURE(of.N, of.Nm, of.D);
    Ungated const ungated{
        {.in_flight = static_cast<int>(of.Nm), .distance = static_cast<int>(of.D)}};
    CHECK_FALSE(run(of, ungated, 10, 60, 0.1).bounded);
    CHECK(run(of, static_cast<sg::staleness::WaveSynchronous>(ungated), 10, 60, 0.1).bounded);
  }
}
