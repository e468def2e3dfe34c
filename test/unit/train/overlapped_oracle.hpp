// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Workers some of whose layers are late, and a sequential loop that has their bits.

#include "catch.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <functional>
#include <utility>
#include <vector>

#include <stagger/engine/run_together.hpp>
#include <stagger/staleness/overlapped_synchronous.hpp>

#include "server_oracle.hpp"
#include "workers_oracle.hpp"

namespace overlapped_oracle {

namespace sg = stagger;
using namespace plain_layers;

inline constexpr std::size_t layer_bytes = sizeof(float) * (width * width + width);

inline std::vector<Numbers> zeros() { return {layers, Numbers(width * width + width)}; }

/// What the oracle knows of a model: all of it written once more, in plain loops.
struct Rules {
  std::function<double(std::size_t layer, int step, Numbers const& g, Numbers const& p)> score;
  enum { skips, stops, splits } misfit = skips;
  std::function<double(int step, double loss)> budget;  // after a step
  double alpha = 0, gamma = 0;                          // of the mean
  bool predicts = true;
  std::vector<std::size_t> bytes = std::vector<std::size_t>(layers, layer_bytes);  // of each layer
};

/// What a worker has done in a step, in which it may have failed.
struct Done {
  bool reported = true;                     // its loss
  std::array<bool, layers> urgent = all();  // pushed what is urgent of a layer
  std::array<bool, layers> late = all();    // likewise
  bool ended = true;                        // the step; otherwise it begins the next one anew
  static constexpr std::array<bool, layers> all() {
    std::array<bool, layers> every{};
    every.fill(true);
    return every;
  }
  /// It has gone.
  static constexpr Done nothing() { return {false, {}, {}, false}; }
};

/// Two-stage synchronisation, sequentially: algorithms 11 and 12 of its specification, with the late
/// layers of a step chosen from the step before.
template <class Optimizer> struct Oracle {
  Optimizer optimizer;
  Rules rules;
  std::size_t workers;
  double clip = 0;                           // norm of a worker's gradients; 0: any
  std::vector<Numbers> p = first_weights();  // canonical
  std::vector<Numbers> first = zeros(), second = zeros();
  std::vector<std::vector<Numbers>> theta{workers, p};
  std::vector<std::vector<Numbers>> mean{workers, zeros()};
  std::vector<std::size_t> late = std::vector<std::size_t>(layers);  // of weights, the first ones
  int step = 0;
  std::vector<int> taken = std::vector<int>(workers);  // steps by each worker's pipeline
  int split_steps = 0;
  int clipped = 0;  // gradients of workers
  std::vector<double> shares = std::vector<double>(workers, 1.0 / static_cast<double>(workers));

  /// The gradients of a layer, added over the workers who have pushed it, whose shares grow to the
  /// sum of all.
  /// @param pushed  (worker) -> whether it has
  template <class Pushed>
  [[nodiscard]] Numbers sum_of(std::vector<std::vector<Numbers>> const& g, std::size_t l,
                               Pushed pushed) const {
    double all = 0, there = 0;
    for (std::size_t n = 0; n < workers; ++n) {
      all += shares[n];
      if (pushed(n)) there += shares[n];
    }
    Numbers sum(g[0][l].size());
    for (std::size_t n = 0; n < workers; ++n) {
      auto const share = static_cast<float>(shares[n] * (all / there));
      for (std::size_t i = 0; pushed(n) && i < sum.size(); ++i) sum[i] += share * g[n][l][i];
    }
    return sum;
  }

  void train(std::vector<Batch> const& batches) { train(batches, std::vector<Done>(workers)); }
  /// @param done  [workers]
  void train(std::vector<Batch> const& batches, std::vector<Done> const& done) {
    std::vector<std::vector<Numbers>> g;
    double loss = 0;
    for (std::size_t n = 0; n < workers; ++n) {
      double own = 0;
      g.push_back(gradients(theta[n], batches[n], own));
      double const scale = clip_scale(g[n], clip);
      if (scale != 1) ++clipped;
      g[n] = scaled(g[n], static_cast<float>(scale));
      if (done[n].reported) loss += own;
    }
    loss /= static_cast<double>(
        std::count_if(done.begin(), done.end(), [](Done const& each) { return each.reported; }));
    auto sum = zeros();
    auto const before = p;
    std::vector<std::pair<double, std::size_t>> scores;
    for (std::size_t l = 0; l < layers; ++l) {
      // The server scores a layer when it has all of it: by what was pushed of its late part.
      if (late[l] != 0) sum[l] = sum_of(g, l, [&](std::size_t n) { return done[n].late[l]; });
      Numbers const urgent = late[l] == sum[l].size()
                                 ? Numbers()
                                 : sum_of(g, l, [&](std::size_t n) { return done[n].urgent[l]; });
      scores.emplace_back(rules.score(l, step, late[l] != 0 ? sum[l] : urgent, before[l]), l);
      if (!urgent.empty())
        std::copy(urgent.begin() + static_cast<long>(late[l]), urgent.end(),
                  sum[l].begin() + static_cast<long>(late[l]));
      // Of what nobody has pushed, weights and states stay as they are.
      auto const any = [&](auto pushed) {
        return std::any_of(done.begin(), done.end(),
                           [&](Done const& each) { return pushed(each); });
      };
      if (any([&](Done const& each) { return each.late[l]; })) update(l, sum[l], 0, late[l]);
      if (any([&](Done const& each) { return each.urgent[l]; }))
        update(l, sum[l], late[l], sum[l].size());
    }
    for (std::size_t n = 0; n < workers; ++n) {
      correct(n);
      theta[n] = p;
      if (done[n].ended) ++taken[n];
      for (std::size_t l = 0; done[n].ended && l < layers; ++l) predict(n, l, before[l], g[n][l]);
    }
    base = before;
    was_late = late;
    std::sort(scores.begin(), scores.end());
    double rest = rules.budget(step, loss);
    late.assign(layers, 0);
    for (auto const& [score, l] : scores) {
      if (static_cast<double>(rules.bytes[l]) <= rest) {
        late[l] = layer_bytes / sizeof(float);
        rest -= static_cast<double>(rules.bytes[l]);
      } else if (rules.misfit != Rules::skips) {
        if (rules.misfit == Rules::splits) late[l] = static_cast<std::size_t>(rest / 8) * 2;
        if (late[l] != 0) ++split_steps;
        break;
      }
    }
    ++step;
  }

  void update(std::size_t l, Numbers const& gradient, std::size_t from, std::size_t to) {
    sg::OptimizerView<float> view;
    view.value = view.next = p[l].data() + from;
    view.gradient = gradient.data() + from;
    view.state = {first[l].data() + from, second[l].data() + from};
    view.size = to - from;
    optimizer.update(view, 1, step + 1);
  }
  /// All workers have failed: in the next step nothing is late.
  void begin_anew() {
    late.assign(layers, 0);
    theta.assign(workers, p);
  }

  /// What was late in the step before has come: the mean takes in what all workers changed.
  void correct(std::size_t n) {
    for (std::size_t l = 0; l < layers && !was_late.empty(); ++l)
      for (std::size_t i = 0; i < was_late[l]; ++i)
        mean[n][l][i] = static_cast<float>(rules.gamma) * mean[n][l][i] +
                        static_cast<float>(1 - rules.gamma) * (corrected[l][i] - base[l][i]);
    if (n + 1 == workers) corrected = p;
  }
  void predict(std::size_t n, std::size_t l, Numbers const& at, Numbers const& gradient) {
    Numbers change(at.size()), velocity(at.size()), moment(at.size());
    sg::OptimizerView<float> view;
    view.value = at.data();
    view.next = change.data();
    view.gradient = gradient.data();
    view.state = {velocity.data(), moment.data()};
    view.size = at.size();
    optimizer.change(view, 1, taken[n]);
    for (std::size_t i = 0; i < late[l]; ++i) {
      float by = change[i];
      if (rules.gamma != 0)
        by = static_cast<float>(rules.alpha) * mean[n][l][i] +
             static_cast<float>(1 - rules.alpha) * change[i];
      theta[n][l][i] = at[i] + (rules.predicts ? by : 0.0F);
    }
  }
  std::vector<Numbers> base{};       // weights before the step before
  std::vector<Numbers> corrected{};  // and after it
  std::vector<std::size_t> was_late{};
};

inline double product(Numbers const& g, Numbers const& p) {
  double sum = 0;
  for (std::size_t i = 0; i < g.size(); ++i)
    sum += std::abs(static_cast<double>(g[i]) * static_cast<double>(p[i]));
  return sum;
}
inline Rules products(double share) {
  return {
      .score = [](std::size_t, int, Numbers const& g, Numbers const& p) { return product(g, p); },
      .budget = [share](int, double) { return share * double{layers * layer_bytes}; }};
}

/// Trains, and compares weights with those of the oracle: after each step, or after every so many,
/// since to look at weights waits for what is late.
/// @param own   the workers of this process
/// @param make  (worker) -> trainer
/// @param clip  norm to which each worker clips its gradients, as those of `make` do; 0: none does
/// @return steps in which a layer was split, or with clipping the gradients that were clipped
template <class Optimizer, class Make>
int compare_late(Rules const& rules, Optimizer const& optimizer, int workers,
                 std::vector<int> const& own, Make make, int look_every = 1, int steps = 7,
                 double clip = 0) {
  CAPTURE(workers, look_every);
  std::vector<decltype(make(0))> trainers;
  for (int const n : own) trainers.push_back(make(n));
  Oracle<Optimizer> oracle{optimizer, rules, static_cast<std::size_t>(workers), clip};
  for (int step = 0; step < steps; ++step) {
    CAPTURE(step);
    std::vector<Batch> batches;
    for (int n = 0; n < workers; ++n) batches.push_back(data(3, n + 10.0 * step));
    std::vector<sg::Step> ran;
    for (std::size_t k = 0; k < own.size(); ++k)
      ran.push_back(trainers[k].step(batches[static_cast<std::size_t>(own[k])]));
    static_cast<void>(sg::run_together(std::move(ran)));
    oracle.train(batches);
    if (step % look_every != look_every - 1) continue;
    std::vector<std::vector<Numbers>> looked;  // all of them, which waits for what is late
    for (auto& trainer : trainers) looked.push_back(weights(trainer));
    for (auto const& each : looked) REQUIRE(each == oracle.p);
    oracle.theta.assign(oracle.workers, oracle.p);  // looking has brought what was late
  }
  return clip != 0 ? oracle.clipped : oracle.split_steps;
}

/// Half of the values and a little more are late, so one layer in part.
inline sg::staleness::OverlappedSynchronous<sg::staleness::overlapped::ParameterGradientProduct,
                                            sg::staleness::overlapped::SplitLayer,
                                            sg::staleness::overlapped::ShareLate> const local_split{
    .budget = {0.6}};
inline Rules local_split_rules() {
  Rules rules = products(0.6);
  rules.misfit = Rules::splits;
  return rules;
}

}  // namespace overlapped_oracle
