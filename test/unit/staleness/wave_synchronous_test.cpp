// SPDX-License-Identifier: Apache-2.0
// Park et al., "HetPipe", USENIX ATC 2020, section 6: what the weights of a minibatch lack and have
// too much, and the equation that the proof of convergence sums up.
#include <stagger/staleness/wave_synchronous.hpp>

#include "catch.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <set>
#include <vector>

#include "train/hetpipe_theory.hpp"

namespace wave_synchronous_test {

using namespace hetpipe_theory;

namespace {

/// Waves without a gate.
struct Ungated : sg::staleness::WaveSynchronous {
  [[nodiscard]] constexpr int needs(int) const noexcept { return 0; }
};

/// What the run showed.
struct Result {
  bool bounded = true;     // what weights lack, and have too much
  double identity = 0;     // the largest relative error of the sum that the proof begins with
  std::size_t lacked = 0;  // minibatches of one other worker, before the own one, the most
  std::size_t worst = 0;   // missing and extra updates of an example, the most
};

/// Runs workers, the first of them `slow` times as slow, and looks at every minibatch.
template <class Model>
Result look(Setting const& of, Model const& model, double slow, int each, double sigma) {
  Falling const falling{sigma, static_cast<double>(of.workers)};
  Course const course = run(of, model, Distance{}, falling, each, {.worker = 0, .times = slow}, 0);
  auto const N = static_cast<std::size_t>(of.workers), count = static_cast<std::size_t>(each),
             Nm = static_cast<std::size_t>(of.in_flight), D = static_cast<std::size_t>(of.distance);
  // Minibatch m of worker n, both from 0, is example t = m N + n of the reference order.
  auto const eta = [&](std::size_t t) { return falling.eta(static_cast<double>(t / N + 1)); };
  std::vector<Vector> g, w{Vector{}};
  course.in_reference_order(falling,
                            [&](auto const&, std::size_t n, std::size_t m, auto const& next) {
                              g.push_back(course.noted[n].gradients[m]);
                              w.push_back(next);
                            });
  Result result;

  // What the weights of each minibatch contained, as the server remembers it.
  std::vector<std::vector<std::vector<std::size_t>>> taken(N);  // [workers][takes][workers] pushes
  std::vector<std::size_t> pushes(N);
  for (auto const& event : course.log) {
    auto const n = static_cast<std::size_t>(event.worker);
    if (event.kind == sg::collective::ServerEvent::Kind::added)
      ++pushes[n];
    else
      taken[n].push_back(pushes);
  }
  auto const s_global = static_cast<std::size_t>(of.s_global()),
             K = static_cast<std::size_t>(of.most_off()), W = static_cast<std::size_t>(of.window());
  for (std::size_t m = 0; m < count; ++m)
    for (std::size_t n = 0; n < N; ++n) {
      std::size_t const t = m * N + n;
      std::size_t const own = m + 1 > Nm ? m + 1 - Nm : 0;
      std::set<std::size_t> lacks, extra;
      Vector seen{};
      for (std::size_t o = 0; o < N; ++o) {
        std::size_t const has = o == n ? own : std::min(count, taken[n][own / Nm][o] * Nm);
        // Staleness towards one other worker, and how far that one may be seen to lead.
        if (o != n) result.lacked = std::max(result.lacked, m - std::min(m, has));
        if (o != n && has > m + (D + 1) * Nm) result.bounded = false;
        for (std::size_t q = 0; q < count; ++q) {
          std::size_t const i = q * N + o;
          if (q < has) seen = plus(seen, -eta(i), g[i]);
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
      Vector const& had = course.noted[n].weights[m];
      Vector const wrong = plus(had, -1, seen);
      REQUIRE(dot(wrong, wrong) < 1e-18);  // it is what the server says it was
      // The equation that the proof sums up.
      double right = (off(w[t]) - off(w[t + 1])) / eta(t) + eta(t) * dot(g[t], g[t]) / 2;
      for (std::size_t const i : lacks) right += eta(i) * dot(g[i], g[t]);
      for (std::size_t const i : extra) right -= eta(i) * dot(g[i], g[t]);
      double const left = dot(g[t], plus(had, -1, best));
      result.identity = std::max(result.identity,
                                 std::abs(left - right) / std::max({1.0, std::abs(left), right}));
    }
  if (result.lacked > s_global) result.bounded = false;
  return result;
}

}  // namespace

TEST_CASE("staleness/WaveSynchronous: the paper's example, four minibatches in flight",
          "[staleness]") {
  // Counted from 1 as in the paper's figure: the waves of every worker that each minibatch needs.
  auto const waves = [](int distance, int minibatch) {
    return sg::staleness::WaveSynchronous{4, distance}.needs(minibatch - 1);
  };
  for (int m = 1; m <= 7; ++m) CHECK(waves(0, m) == 0);
  for (int m = 8; m <= 11; ++m) CHECK(waves(0, m) == 1);
  for (int m = 12; m <= 15; ++m) CHECK(waves(0, m) == 2);
  for (int m = 16; m <= 19; ++m) CHECK(waves(0, m) == 3);
  for (int m = 1; m <= 11; ++m) CHECK(waves(1, m) == 0);
  CHECK(waves(1, 12) == 1);
  // Minibatch 11 does without 5 to 10 of others, which are as many as any may lack.
  CHECK(10 - 4 * waves(0, 11) == 6);
  CHECK(Setting{2, 4, 0}.s_global() == 6);
}

TEST_CASE(
    "staleness/WaveSynchronous: staleness is as large as published and no larger, and the proof's "
    "equation holds",
    "[staleness]") {
  for (Setting const of : {Setting{1, 1, 0},
                           {1, 4, 0},
                           {4, 1, 0},
                           {4, 1, 3},
                           {4, 4, 0},
                           {4, 4, 1},
                           {2, 1, 1},
                           {2, 3, 2},
                           {2, 5, 0},
                           {2, 5, 1},
                           {4, 5, 3},
                           {3, 2, 1}}) {
    CAPTURE(of.workers, of.in_flight, of.distance);
    Result const result = look(of, of.waves(), 4, 100, 0.3);
    CAPTURE(result.worst);
    CHECK(result.bounded);
    if (of.workers > 1) CHECK(result.lacked == static_cast<std::size_t>(of.s_global()));
    CHECK(result.identity < 1e-9);
  }
}

TEST_CASE(
    "staleness/WaveSynchronous: without the gate, a worker ten times as slow breaks the bounds",
    "[staleness]") {
  for (Setting const of : {Setting{4, 1, 3}, {4, 4, 1}, {2, 3, 2}}) {
    CAPTURE(of.workers, of.in_flight, of.distance);
    CHECK_FALSE(look(of, Ungated{of.waves()}, 10, 60, 0.1).bounded);
    CHECK(look(of, of.waves(), 10, 60, 0.1).bounded);
  }
}

}  // namespace wave_synchronous_test
