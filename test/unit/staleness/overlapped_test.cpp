// SPDX-License-Identifier: Apache-2.0
#include <stagger/staleness/overlapped_synchronous.hpp>

#include "catch.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>
#include <span>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <stagger/collective/parameter_server.hpp>
#include <stagger/engine/run_together.hpp>
#include <stagger/host/threads.hpp>
#include <stagger/partition/cuts.hpp>
#include <stagger/sim/virtual_clock.hpp>
#include <stagger/staleness/synchronous.hpp>
#include <stagger/train/pipeline.hpp>

#include "train/overlapped_oracle.hpp"

namespace overlapped_test {

namespace sg = stagger;
using namespace plain_layers;
using namespace overlapped_oracle;
namespace osp = sg::staleness::overlapped;

namespace {

sg::optimizer::AdamW const adam{.rate = 0.05, .weight_decay = 0.1};
sg::optimizer::Sgd const sgd{.rate = 0.05, .momentum = 0.9, .weight_decay = 0.01};

/// @tparam Of  the type of its layers, which is made from their number
template <class Of = Layer, class Model, class Optimizer, class Device>
auto worker(Model const& model, sg::collective::ParameterServer const& server, int number,
            std::vector<int> cuts, Optimizer const& optimizer, Device device, double clip = 0) {
  std::vector<Of> stack;
  for (int l = 0; l < static_cast<int>(layers); ++l) stack.emplace_back(l);
  sg::Options options{.non_finite = workers_oracle::non_finite};
  if (clip != 0) options.clip_norm = clip;
  return sg::Pipeline{sg::Sequential{std::move(stack)}}.with(sg::partition::Cuts{std::move(cuts)},
                                                             model, server.worker(number), Loss{},
                                                             optimizer, std::move(device), options);
}

/// @param rotation  of the cuts
/// @param clip  norm to which each worker clips its gradients; 0: none does
/// @return as of compare_late
template <class Of = Layer, class Model, class Optimizer, class DeviceOf>
int compare(Model const& model, Rules const& rules, Optimizer const& optimizer, int workers,
            int shards, DeviceOf device_of, int rotation = 0, int look_every = 1, int steps = 7,
            double clip = 0) {
  CAPTURE(shards, rotation);
  sg::collective::ParameterServer const server({.workers = workers, .shards = shards});
  return compare_late(
      rules, optimizer, workers, workers_oracle::all_of(workers),
      [&](int n) {
        return worker<Of>(model, server, n, workers_oracle::cuts_of(n, rotation), optimizer,
                          device_of(n), clip);
      },
      look_every, steps, clip);
}

}  // namespace

TEST_CASE("staleness/OverlappedSynchronous: workers have the bits of a sequential loop",
          "[staleness]") {
  using Model =
      sg::staleness::OverlappedSynchronous<osp::FixedImportance, osp::FirstFit, osp::ShareLate>;
  Model const model{.importance = {{3, 1, 2, 4}}, .budget = {0.5}};
  Rules rules = products(0.5);
  rules.score = [](std::size_t l, int, Numbers const&, Numbers const&) {
    return std::vector<double>{3, 1, 2, 4}[l];
  };
  workers_oracle::sweep_steps([&](int workers, int rotation, int threads) {
    for (int const look_every : {7, 2, 1})
      compare(
          model, rules, sgd, workers, 1 + workers % 3,
          [&](int) { return sg::host::Threads{threads}; }, rotation, look_every);
  });
}

namespace {

template <class I, class B, class P = osp::LocalGradient, class S = osp::FirstFit>
using Osp = sg::staleness::OverlappedSynchronous<I, S, B, P>;
using Products = osp::ParameterGradientProduct;

sg::sim::VirtualClock on(sg::sim::Clock const& clock, int worker, double jitter) {
  sg::sim::VirtualClock device;
  device.costs = sg::schedule::Costs::uniform(1 + worker, 2, 0.5);
  device.jitter = jitter;
  device.seed = static_cast<std::uint64_t>(worker);
  device.clock = clock;
  return device;
}

/// On threads, and in virtual time over links of several kinds.
template <class Of = Layer, class Model, class Optimizer>
int compare_everywhere(Model const& model, Rules const& rules, Optimizer const& optimizer,
                       int workers) {
  int split_steps = 0;
  for (int const threads : {1, 2, 4})
    split_steps += compare<Of>(
        model, rules, optimizer, workers, 1 + workers % 3,
        [&](int) { return sg::host::Threads{threads}; }, threads % 4, 7);
  std::vector<sg::sim::Links> const links{
      {},
      {.rate = 100, .latency_s = 0.5},
      {.rate = 20, .loss = 0.5, .sharing = sg::sim::Sharing::fifo, .duplex = sg::sim::Duplex::half},
      {.latency_s = 7, .sharing = sg::sim::Sharing::one_at_a_time}};
  int rotation = 0;
  for (auto const& link : links) {
    CAPTURE(link.rate, link.latency_s);
    for (int const look_every : {7, 3}) {
      sg::sim::Clock const clock(link);
      split_steps += compare<Of>(
          model, rules, optimizer, workers, 2,
          [&](int n) { return on(clock, n, look_every == 7 ? 0.5 : 0); }, rotation++ % 4,
          look_every);
    }
  }
  return split_steps;
}

}  // namespace

TEST_CASE(
    "staleness/OverlappedSynchronous: any importance, budget and prediction has the oracle's bits",
    "[staleness]") {
  for (int const workers : {1, 2, 3, 4}) {
    compare_everywhere(Osp<Products, osp::ShareLate>{.budget = {0.8}}, products(0.8), adam,
                       workers);
    compare_everywhere(Osp<Products, osp::AllLate>{}, products(1), sgd, workers);
    Rules norm = products(0.3);
    norm.score = [](std::size_t, int, Numbers const& g, Numbers const&) {
      double sum = 0;
      for (float const each : g) sum += static_cast<double>(each) * static_cast<double>(each);
      return std::sqrt(sum);
    };
    norm.predicts = false;
    compare_everywhere(Osp<osp::GradientNorm, osp::ShareLate, osp::NoPrediction>{.budget = {0.3}},
                       norm, sgd, workers);
    Rules mixed = products(0.6);
    mixed.alpha = 0.3, mixed.gamma = 0.8;
    compare_everywhere(
        Osp<Products, osp::ShareLate, osp::MeanGradient>{
            .budget = {0.6}, .prediction = {.alpha = 0.3, .gamma = 0.8}},
        mixed, sgd, workers);
  }
}

namespace {

/// A layer with numbers that it does not use, more or fewer of them, in double precision.
struct Laden : Layer {
  static constexpr std::array<std::size_t, layers> sizes{3, 40, 1, 9};
  sg::Parameter<double> ballast;
  explicit Laden(int number)
      : Layer(number),
        ballast("ballast", std::vector<double>(sizes[static_cast<std::size_t>(number)], 0.5)) {}
  auto parameters() { return std::tie(weight, ballast); }
};

}  // namespace

TEMPLATE_TEST_CASE(
    "staleness/OverlappedSynchronous: layers of unequal sizes, by any normalisation, have the "
    "oracle's "
    "bits",
    "[staleness]", osp::FirstFit, osp::StopAtMisfit) {
  using osp::Normalisation;
  for (auto const by : {Normalisation::sum, Normalisation::per_element, Normalisation::per_byte})
    for (double const share : {0.2, 0.3, 0.75}) {
      CAPTURE(static_cast<int>(by), share);
      Rules rules;
      if constexpr (std::is_same_v<TestType, osp::StopAtMisfit>) rules.misfit = Rules::stops;
      double all = 0;
      for (std::size_t l = 0; l < layers; ++l) {
        rules.bytes[l] += Laden::sizes[l] * sizeof(double);
        all += static_cast<double>(rules.bytes[l]);
      }
      rules.budget = [=](int, double) { return share * all; };
      rules.score = [=](std::size_t l, int, Numbers const& g, Numbers const& p) {
        double const score = product(g, p);
        if (by == Normalisation::sum) return score;
        std::size_t const elements = g.size() + Laden::sizes[l];
        std::size_t const bytes = layer_bytes + 8 * Laden::sizes[l];
        return score / static_cast<double>(by == Normalisation::per_element ? elements : bytes);
      };
      for (int const workers : {1, 3})
        compare_everywhere<Laden>(
            Osp<Products, osp::ShareLate, osp::LocalGradient, TestType>{.budget = {share},
                                                                        .normalisation = by},
            rules, sgd, workers);
    }
}

TEST_CASE("staleness/OverlappedSynchronous: layers that are split have the oracle's bits",
          "[staleness]") {
  for (int const workers : {1, 2, 3}) {
    for (double const share : {0.1, 0.6, 0.8}) {
      Rules rules = products(share);
      rules.misfit = Rules::splits;
      CHECK(
          compare_everywhere(
              Osp<Products, osp::ShareLate, osp::LocalGradient, osp::SplitLayer>{.budget = {share}},
              rules, workers == 2 ? sgd : sg::optimizer::Sgd{.rate = 0.05}, workers) > 40);
      CHECK(
          compare_everywhere(
              Osp<Products, osp::ShareLate, osp::NoPrediction, osp::SplitLayer>{.budget = {share}},
              [&] {
                Rules none = rules;
                none.predicts = false;
                return none;
              }(),
              adam, workers) > 40);
    }
    Rules mixed = products(0.45);
    mixed.misfit = Rules::splits;
    mixed.alpha = 0.3, mixed.gamma = 0.8;
    compare_everywhere(
        Osp<Products, osp::ShareLate, osp::MeanGradient, osp::SplitLayer>{
            .budget = {0.45}, .prediction = {.alpha = 0.3, .gamma = 0.8}},
        mixed, sgd, workers);
  }
}

TEST_CASE(
    "staleness/OverlappedSynchronous: pushes, and predictions, are of gradients that the worker "
    "has "
    "clipped",
    "[staleness]") {
  for (int const workers : {1, 2})
    for (int const rotation : {0, 1, 2, 3})
      for (double const clip : {0.05, 0.6}) {
        Rules rules = products(0.6);
        rules.misfit = Rules::splits;
        int const clipped = compare(
            Osp<Products, osp::ShareLate, osp::LocalGradient, osp::SplitLayer>{.budget = {0.6}},
            rules, sgd, workers, 2, [](int n) { return sg::host::Threads{1 + n % 2}; }, rotation, 7,
            7, clip);
        CAPTURE(clipped);
        CHECK((clip == 0.05 ? clipped == 7 * workers : clipped > 0 && clipped < 7 * workers));
      }
}

TEST_CASE("staleness/OverlappedSynchronous: the running loss of all workers tunes the budget",
          "[staleness]") {
  Rules rules = products(0);
  double mean = 0, first = 0;
  rules.budget = [&](int step, double loss) {
    mean = step == 0 ? loss : 0.5 * mean + 0.5 * loss;
    if (step == 0) first = mean;
    double const factor = std::max(0.0, 1 - mean / first);
    return std::min(1e4 * 2 / (1 * 2), 0.8 * double{layers * layer_bytes}) * std::min(factor, 1.0);
  };
  osp::LossTuned const tuned{
      .rate = 1e4, .computation_s = 2, .tuning = osp::Tuning::running, .keep = 0.5};
  compare(
      Osp<Products, osp::LossTuned>{.budget = tuned}, rules, sgd, 2, 1,
      [](int) { return sg::host::Threads{1}; }, 0, 20, 20);
}

namespace {

/// Weights of a worker after some steps of all, without looking at them in between.
template <class Model, class Optimizer>
std::vector<Numbers> trained(Model const& model, Optimizer const& optimizer, int workers,
                             bool same_data = false, bool look = false) {
  sg::collective::ParameterServer const server({.workers = workers});
  auto const make = [&](int n) {
    return worker(model, server, n, {2}, optimizer, sg::host::Threads{1});
  };
  std::vector<decltype(make(0))> trainers;
  for (int n = 0; n < workers; ++n) trainers.push_back(make(n));
  for (int step = 0; step < 8; ++step) {
    std::vector<Batch> batches;
    for (int n = 0; n < workers; ++n) batches.push_back(data(2, (same_data ? 0 : n) + 10.0 * step));
    std::vector<sg::Step> steps;
    for (std::size_t n = 0; n < trainers.size(); ++n) steps.push_back(trainers[n].step(batches[n]));
    static_cast<void>(sg::run_together(std::move(steps)));
    if (look) static_cast<void>(trainers.front().parameters());
  }
  auto const all = weights(trainers.front());
  for (auto& trainer : trainers) REQUIRE(weights(trainer) == all);
  return all;
}
constexpr sg::staleness::Synchronous synchronous;
sg::optimizer::Sgd const plain{.rate = 0.05};

}  // namespace

TEST_CASE("staleness/OverlappedSynchronous: O D1: where nothing is late, it is bulk synchronous",
          "[staleness][papers]") {
  for (int const workers : {1, 3}) {
    auto const expected = trained(synchronous, adam, workers);
    CHECK(trained(Osp<Products, osp::NothingLate>{}, adam, workers) == expected);
    CHECK(trained(Osp<Products, osp::ShareLate>{.budget = {0}}, adam, workers) == expected);
    // No layer is as small as the budget.
    CHECK(trained(Osp<Products, osp::ShareLate>{.budget = {0.2}}, adam, workers) == expected);
  }
}

namespace {

/// A worker alone, whose late layers are drawn.
template <class Selection, class Prediction>
std::vector<Numbers> drawn(double share, std::uint64_t seed) {
  return trained(
      Osp<osp::RandomImportance, osp::ShareLate, Prediction, Selection>{.importance = {seed},
                                                                        .budget = {share}},
      plain, 1);
}
/// Without a server.
std::vector<Numbers> trained_alone() {
  std::vector<Layer> stack;
  for (int l = 0; l < static_cast<int>(layers); ++l) stack.emplace_back(l);
  auto train = sg::Pipeline{sg::Sequential{std::move(stack)}}.with(sg::partition::Cuts{{2}}, Loss{},
                                                                   plain, sg::host::Threads{1});
  for (int step = 0; step < 8; ++step) static_cast<void>(run(train.step(data(2, 10.0 * step))));
  return weights(train);
}

}  // namespace

TEST_CASE("staleness/OverlappedSynchronous: one worker's own gradient is that of all",
          "[staleness]") {
  auto const expected = trained_alone();
  CHECK(trained(synchronous, plain, 1) == expected);
  CHECK(trained(Osp<Products, osp::ShareLate>{.budget = {0.5}}, plain, 1) == expected);
  CHECK(trained(Osp<Products, osp::AllLate>{}, plain, 1) == expected);
  // Whichever layers are late, whole or in part; and something is.
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    CAPTURE(seed);
    CHECK(drawn<osp::FirstFit, osp::LocalGradient>(0.5, seed) == expected);
    CHECK(drawn<osp::SplitLayer, osp::LocalGradient>(0.6, seed) == expected);
    CHECK(drawn<osp::FirstFit, osp::NoPrediction>(0.5, seed) != expected);
    CHECK(drawn<osp::SplitLayer, osp::NoPrediction>(0.6, seed) != expected);
  }
}

TEST_CASE(
    "staleness/OverlappedSynchronous: corrected at once, before anything computes, it is bulk "
    "synchronous",
    "[staleness]") {
  // Steps are taken together, so late values are there when the next step begins.
  for (auto const share : {0.3, 0.8})
    CHECK(trained(Osp<Products, osp::ShareLate>{.budget = {share}, .immediate = true}, sgd, 3) ==
          trained(synchronous, sgd, 3));
}

TEST_CASE("staleness/OverlappedSynchronous: a mean without weight predicts the local gradient",
          "[staleness]") {
  CHECK(trained(Osp<Products, osp::AllLate, osp::MeanGradient>{.prediction = {.alpha = 0}}, sgd,
                3) == trained(Osp<Products, osp::AllLate>{}, sgd, 3));
}

namespace {

/// Layers in double precision.
struct Wide {
  using Input = std::vector<double>;
  using Output = std::vector<double>;
  struct Saved {
    std::vector<double> y;
  };
  sg::Parameter<double> weight;
  explicit Wide(int number) : weight("weight", first(number)) {}
  static std::vector<double> first(int number) {
    std::vector<double> w(width * width + width);
    for (std::size_t i = 0; i < w.size(); ++i)
      w[i] = std::sin(static_cast<double>(i) * 1.7 + number);
    return w;
  }
  auto parameters() { return std::tie(weight); }
  void forward(sg::Context& context, Input const& x, Output& y, Saved& saved) {
    auto const w = context[weight];
    y.assign(width, 0);
    for (std::size_t i = 0; i < width; ++i) {
      double sum = w[width * width + i];
      for (std::size_t j = 0; j < width; ++j) sum += w[i * width + j] * x[j];
      y[i] = std::tanh(sum);
    }
    saved.y = y;
  }
  void backward(sg::Context& context, Input const& x, Output const& dy, Input& dx, Saved& saved) {
    auto const w = context[weight];
    auto const dw = context.gradient(weight);
    dx.assign(width, 0);
    for (std::size_t i = 0; i < width; ++i) {
      double const g = dy[i] * (1 - saved.y[i] * saved.y[i]);
      for (std::size_t j = 0; j < width; ++j) dx[j] += g * w[i * width + j];
      for (std::size_t j = 0; j < width; ++j) dw[i * width + j] += g * x[j];
      dw[width * width + i] += g;
    }
  }
};
struct WideLoss {
  using policy_tag = sg::LossTag;
  using Target = std::vector<double>;
  double terms(Target const& t) const { return static_cast<double>(t.size()); }
  double value(sg::Context&, Target const& y, Target const& t) const {
    double sum = 0;
    for (std::size_t i = 0; i < width; ++i) sum += (y[i] - t[i]) * (y[i] - t[i]);
    return sum;
  }
  double value_and_gradient(sg::Context& context, Target const& y, Target const& t, double scale,
                            Target& dy) const {
    dy.resize(width);
    for (std::size_t i = 0; i < width; ++i) dy[i] = scale * 2 * (y[i] - t[i]);
    return value(context, y, t);
  }
};

/// What workers with equal data have after some steps.
template <class Model> std::vector<double> trained_wide(Model const& model, int workers) {
  sg::collective::ParameterServer const server({.workers = workers});
  auto const make = [&](int n) {
    return sg::Pipeline{Wide(0), Wide(1), Wide(2), Wide(3)}.with(
        model, server.worker(n), WideLoss{}, plain, sg::host::Threads{1});
  };
  std::vector<decltype(make(0))> trainers;
  for (int n = 0; n < workers; ++n) trainers.push_back(make(n));
  for (int step = 0; step < 8; ++step) {
    auto const narrow = data(2, 10.0 * step);
    sg::Batch<std::vector<double>, std::vector<double>> batch;
    for (auto const& x : narrow.inputs) batch.inputs.emplace_back(x.begin(), x.end());
    for (auto const& t : narrow.targets) batch.targets.emplace_back(t.begin(), t.end());
    std::vector<sg::Step> steps;
    for (auto& trainer : trainers) steps.push_back(trainer.step(batch));
    static_cast<void>(sg::run_together(std::move(steps)));
  }
  std::vector<double> all;
  for (auto const& p : trainers.front().parameters())
    for (double const each : p.template values<double>()) all.push_back(each);
  return all;
}

}  // namespace

TEST_CASE("staleness/OverlappedSynchronous: workers with equal data are bulk synchronous",
          "[staleness]") {
  for (int const workers : {2, 3, 4}) {
    CAPTURE(workers);
    auto const expected = trained_wide(synchronous, workers);
    auto const late = trained_wide(Osp<Products, osp::AllLate>{}, workers);
    if (workers == 2) CHECK(late == expected);  // halves add up without rounding
    double most = 0, most_unpredicted = 0;
    auto const unpredicted =
        trained_wide(Osp<Products, osp::AllLate, osp::NoPrediction>{}, workers);
    for (std::size_t i = 0; i < late.size(); ++i) {
      auto const differs = [&](double value) {
        return std::abs(value - expected[i]) / std::max(std::abs(expected[i]), 0.1);
      };
      most = std::max(most, differs(late[i]));
      most_unpredicted = std::max(most_unpredicted, differs(unpredicted[i]));
    }
    CHECK(most <= 1e-12);
    CHECK(most_unpredicted > 1e-4);
  }
}

TEST_CASE("staleness/OverlappedSynchronous: a budget admits what fits", "[staleness]") {
  struct Layer {
    std::uint64_t bytes;
    bool late = false;
  };
  auto const late = [](auto const& selection, double budget) {
    std::vector<Layer> list{{10}, {50}, {20}, {5}};
    selection.pick(std::span<Layer>(list), budget);
    std::vector<bool> result;
    for (Layer const& each : list) result.push_back(each.late);
    return result;
  };
  CHECK(late(osp::FirstFit{}, 35) == std::vector<bool>{true, false, true, true});
  CHECK(late(osp::FirstFit{}, 34) == std::vector<bool>{true, false, true, false});
  CHECK(late(osp::StopAtMisfit{}, 35) == std::vector<bool>{true, false, false, false});
  CHECK(late(osp::StopAtMisfit{}, 60) == std::vector<bool>{true, true, false, false});
  CHECK(late(osp::FirstFit{}, 4) == std::vector<bool>(4));
  struct Divisible : Layer {
    std::uint64_t late_bytes = 0;
  };
  for (double const budget : {0.0, 9.0, 10.0, 35.5, 60.0, 79.0, 85.0}) {
    CAPTURE(budget);
    std::vector<Divisible> list{{{10}}, {{50}}, {{20}}, {{5}}};
    osp::SplitLayer{}.pick(std::span<Divisible>(list), budget);
    std::uint64_t sum = 0, whole = 0;
    for (Divisible const& each : list) {
      sum += each.late ? each.bytes : each.late_bytes;
      if (each.late_bytes != 0) CHECK(each.late_bytes < each.bytes);
      if (each.late) CHECK(sum == (whole += each.bytes));  // none behind one that is split
    }
    CHECK(sum == static_cast<std::uint64_t>(budget));
  }
}

TEST_CASE("staleness/LossTuned: equation 5, by epoch, and never more than the bound",
          "[staleness]") {
  struct Ended {
    std::int64_t step;
    double loss;
    std::uint64_t model_bytes;
    int workers;
  };
  osp::LossTuned tuned{
      .rate = 100, .computation_s = 9, .latency_s = 1, .loss = 0.25, .ways = 2, .steps = 2};
  CHECK(tuned.most(4) == 100 * 8 / (2 * 4 * 1.25));
  tuned.bound = osp::Bound::as_printed;
  CHECK(tuned.most(4) == 100 * 1.25 * 9 / 4);
  tuned.bound = osp::Bound::physical;
  std::vector<double> budgets;
  std::vector<double> const losses{9, 7, 6, 6, 5, 3, 2, 0, -1, -1, 20, 20};  // 8 6 4 1 -1 20
  for (std::size_t i = 0; i < losses.size(); ++i)
    budgets.push_back(tuned.bytes(Ended{static_cast<std::int64_t>(i), losses[i], 1000, 4}));
  CHECK(budgets == std::vector<double>{0, 0, 0, 20, 20, 40, 40, 70, 70, 80, 80, 0});
  osp::LossTuned capped = tuned;
  capped.seen = {};
  CHECK(capped.bytes(Ended{0, 4, 50, 4}) == 0);
  CHECK(capped.bytes(Ended{1, 4, 50, 4}) == 0);
  CHECK(capped.bytes(Ended{2, 0, 50, 4}) == 0);
  CHECK(capped.bytes(Ended{3, 0, 50, 4}) == 0.8 * 50);
}

TEST_CASE("staleness/LossTuned: nothing is late by a first loss that measures nothing",
          "[staleness]") {
  double const infinite = std::numeric_limits<double>::infinity();
  auto const budgets = [](osp::Tuning tuning, std::vector<double> const& losses) {
    osp::LossTuned tuned{
        .rate = 100, .computation_s = 1, .tuning = tuning, .steps = 1, .keep = 0.5};
    std::vector<double> all;
    for (std::size_t i = 0; i < losses.size(); ++i)
      all.push_back(
          tuned.bytes(sg::detail::EndedStep{static_cast<std::int64_t>(i), losses[i], 1000, 1}));
    return all;
  };
  for (auto const tuning : {osp::Tuning::by_epoch, osp::Tuning::running})
    for (double const first : {0.0, -0.0, -2.0, infinite, -infinite, std::nan("")}) {
      CAPTURE(tuning == osp::Tuning::running, first);
      CHECK(budgets(tuning, {first, 8, 4, 1, 0}) == std::vector<double>(5));
    }
  // A later one that is not finite is not as good as a small one.
  for (double const later : {infinite, -infinite, std::nan("")})
    CHECK(budgets(osp::Tuning::by_epoch, {8, 4, later, 4}) == std::vector<double>{0, 50, 0, 50});
}

namespace {

/// Weights in exact sums: each microbatch adds its input, a whole number, to the gradient.
struct Counter {
  using Input = float;
  using Output = float;
  struct Saved {};
  sg::Parameter<> count{"count", Numbers{0}};
  sg::Parameter<double> wide{"wide", std::vector<double>{0}};
  auto parameters() { return std::tie(count, wide); }
  void forward(sg::Context&, float const& x, float& y, Saved&) { y = x; }
  void backward(sg::Context& context, float const& x, float const& dy, float& dx, Saved&) {
    context.gradient(count)[0] -= x;
    context.gradient(wide)[0] -= static_cast<double>(x);
    dx = dy;
  }
};
struct Nothing {
  using policy_tag = sg::LossTag;
  using Target = float;
  double terms(float const&) const { return 1; }
  double value(sg::Context&, float const&, float const&) const { return 0; }
  double value_and_gradient(sg::Context&, float const&, float const&, double, float& dy) const {
    dy = 0;
    return 0;
  }
};

}  // namespace

TEMPLATE_TEST_CASE("staleness/OverlappedSynchronous: each gradient is added once", "[staleness]",
                   osp::FirstFit, osp::SplitLayer) {
  constexpr int workers = 3;
  sg::collective::ParameterServer const server({.workers = workers, .weights = {1, 1, 1}});
  // Of five layers of 12 bytes each 33 fit: two, and 8 bytes of the next.
  Osp<osp::RandomImportance, osp::ShareLate, osp::LocalGradient, TestType> const model{
      .budget = {0.55}};
  auto const make = [&](int n) {
    return sg::Pipeline{Counter{}, Counter{}, Counter{}, Counter{}, Counter{}}.with(
        model, server.worker(n), Nothing{}, sg::optimizer::Sgd{.rate = 1}, sg::host::Threads{2});
  };
  std::vector<decltype(make(0))> trainers;
  for (int n = 0; n < workers; ++n) trainers.push_back(make(n));
  double sum = 0;
  for (int step = 0; step < 20; ++step) {
    std::vector<sg::Batch<float, float>> batches;
    for (int n = 0; n < workers; ++n) {
      auto const a = static_cast<float>(1 + step * 7 % 5 + n), b = static_cast<float>(n * step % 3);
      batches.push_back({{a, b}, {0, 0}});
      sum += static_cast<double>(a + b);
    }
    std::vector<sg::Step> steps;
    for (std::size_t n = 0; n < workers; ++n) steps.push_back(trainers[n].step(batches[n]));
    static_cast<void>(sg::run_together(std::move(steps)));
  }
  for (auto& trainer : trainers)
    for (auto const& parameter : trainer.parameters())
      if (parameter.type == sg::ElementType::f32)
        CHECK(parameter.template values<float>()[0] == static_cast<float>(sum));
      else
        CHECK(parameter.template values<double>()[0] == sum);
}

namespace {

using Half = Osp<Products, osp::ShareLate>;
Half const half_late{.budget = {0.5}};

template <class Trainers> void step_all(Trainers& trainers, double seed, int microbatches = 2) {
  std::vector<Batch> batches;
  for (std::size_t n = 0; n < trainers.size(); ++n)
    batches.push_back(data(microbatches, seed + static_cast<double>(n)));
  std::vector<sg::Step> steps;
  for (std::size_t n = 0; n < trainers.size(); ++n) steps.push_back(trainers[n].step(batches[n]));
  static_cast<void>(sg::run_together(std::move(steps)));
}

/// Two workers of half the layers late, and an oracle, after some steps of both.
struct Trained {
  sg::collective::ParameterServer const server{{.workers = 2}};
  std::vector<decltype(worker(half_late, server, 0, {2}, sgd, sg::host::Threads{2}))> trainers;
  Oracle<sg::optimizer::Sgd> oracle{sgd, products(0.5), 2};
  explicit Trained(int steps) {
    for (int n = 0; n < 2; ++n)
      trainers.push_back(worker(half_late, server, n, {2}, sgd, sg::host::Threads{2}));
    for (int step = 0; step < steps; ++step) {
      step_all(trainers, 10.0 * step);
      oracle.train({data(2, 10.0 * step), data(2, 10.0 * step + 1)});
    }
  }
};

}  // namespace

TEST_CASE("staleness/OverlappedSynchronous: evaluation sees the weights that all workers have",
          "[staleness]") {
  Trained trained(4);
  auto const batch = data(2, 77);
  double loss = 0;
  static_cast<void>(gradients(trained.oracle.p, batch, loss));
  for (auto& trainer : trained.trainers) CHECK(run(trainer.evaluate(batch)).loss == Approx(loss));
  for (auto& trainer : trained.trainers) CHECK(weights(trainer) == trained.oracle.p);
}

TEST_CASE(
    "staleness/OverlappedSynchronous: to look at weights keeps what the last step has recorded",
    "[staleness]") {
  sg::sim::Clock const clock({.rate = 1000});
  sg::collective::ParameterServer const server({.workers = 2});
  std::vector<decltype(worker(half_late, server, 0, {2}, sgd, on(clock, 0, 0)))> trainers;
  for (int n = 0; n < 2; ++n)
    trainers.push_back(worker(half_late, server, n, {2}, sgd, on(clock, n, 0)));
  for (auto& trainer : trainers) trainer.record(true);
  for (int step = 0; step < 3; ++step) step_all(trainers, step);
  auto const forwards = [&] {
    int count = 0;
    for (auto const& span : trainers[0].timeline().spans)
      if (span.action.kind == sg::schedule::Kind::forward) ++count;
    return count;
  };
  CHECK(forwards() == 4);
  static_cast<void>(trainers[0].parameters());
  CHECK(forwards() == 4);
}

TEST_CASE(
    "staleness/OverlappedSynchronous: workers go when something is late, and others see it all",
    "[staleness]") {
  Trained trained(3);
  trained.trainers.pop_back();
  CHECK(weights(trained.trainers[0]) == trained.oracle.p);
}

TEST_CASE(
    "staleness/OverlappedSynchronous: a worker that fails ends the step of the others, and all "
    "begin "
    "again with nothing late",
    "[staleness]") {
  sg::collective::ParameterServer const server({.workers = 2});
  auto const make = [&](int n, int fail_at) {
    std::vector<Layer> stack;
    for (int l = 0; l < static_cast<int>(layers); ++l) stack.emplace_back(l);
    stack[1].fail_at = fail_at;
    return sg::Pipeline{sg::Sequential{std::move(stack)}}.with(
        sg::partition::Cuts{{2}}, half_late, server.worker(n), Loss{}, sgd, sg::host::Threads{2});
  };
  std::vector<decltype(make(0, -1))> trainers;
  trainers.push_back(make(0, -1));
  trainers.push_back(make(1, 3));  // at a microbatch that only some steps have
  for (int step = 0; step < 3; ++step) step_all(trainers, step);
  REQUIRE_THROWS_WITH(step_all(trainers, 3, 4), "out of ink");
  REQUIRE(weights(trainers[0]) == weights(trainers[1]));
  for (int step = 4; step < 7; ++step) step_all(trainers, step);
  REQUIRE(weights(trainers[0]) == weights(trainers[1]));
}

TEST_CASE("staleness/OverlappedSynchronous: a gradient that is not finite is not pushed",
          "[staleness]") {
  auto const refuses = [] {
    sg::collective::ParameterServer const server({.workers = 1});
    auto train = worker(half_late, server, 0, {2}, sgd, sg::host::Threads{1});
    auto batch = data(2);
    static_cast<void>(run(train.step(batch)));
    auto const before = weights(train);
    batch.targets[1][0] = std::numeric_limits<float>::infinity();
    REQUIRE_THROWS_WITH(
        run(train.step(batch)),
        Catch::Matchers::StartsWith("a gradient of layer") &&
            Catch::Matchers::Contains("is not finite, so this worker pushed nothing after step 1"));
    CHECK(weights(train) == before);
  };
  refuses();
  workers_oracle::LetThemPush const whatever;
  refuses();
}

TEST_CASE("staleness/OverlappedSynchronous: a prediction's memory is counted", "[staleness]") {
  auto const bytes = [](auto const& model) {
    sg::collective::ParameterServer const server({.workers = 1});
    return worker(model, server, 0, {2}, sgd, sg::host::Threads{1}).memory().parameters;
  };
  std::uint64_t const model_bytes = layers * 64;  // 48, and the gap behind them
  auto const none = bytes(synchronous);
  CHECK(bytes(Osp<Products, osp::NothingLate>{}) == none);
  CHECK(bytes(Osp<Products, osp::AllLate, osp::NoPrediction>{}) == none);
  CHECK(bytes(Osp<Products, osp::AllLate>{}) == none + model_bytes);
  CHECK(bytes(Osp<Products, osp::AllLate, osp::MeanGradient>{}) == none + 2 * model_bytes);
}

TEST_CASE(
    "staleness/OverlappedSynchronous: refuses numbers that cannot be, and workers that differ",
    "[staleness]") {
  auto const refused = [](auto const& model, char const* words) {
    sg::collective::ParameterServer const server({.workers = 1});
    CHECK_THROWS_WITH(worker(model, server, 0, {2}, sgd, sg::host::Threads{1}),
                      Catch::Matchers::Contains(words));
  };
  using Tuned = Osp<Products, osp::LossTuned>;
  refused(Osp<Products, osp::ShareLate>{.budget = {0.9}}, "a share of 0.9");
  refused(Tuned{}, "a link of 0 bytes/s");
  refused(Tuned{.budget = {.rate = 1, .computation_s = -1}}, "a computation of -1 s");
  refused(Tuned{.budget = {.rate = 1, .loss = 1}}, "a loss of 1");
  refused(Tuned{.budget = {.rate = 1, .ways = 3}}, "ways cannot be 3");
  refused(Tuned{.budget = {.rate = 1}}, "0 steps an epoch");
  sg::collective::ParameterServer const server({.workers = 3});
  auto const first = worker(half_late, server, 0, {2}, sgd, sg::host::Threads{1});
  Half other = half_late;
  other.budget.share = 0.4;
  CHECK_THROWS_WITH(worker(other, server, 1, {2}, sgd, sg::host::Threads{1}),
                    Catch::Matchers::Contains("0.4") && Catch::Matchers::Contains("0.5") &&
                        Catch::Matchers::Contains("the same staleness model"));
  CHECK_THROWS_WITH(worker(synchronous, server, 1, {2}, sgd, sg::host::Threads{1}),
                    Catch::Matchers::Contains("the same staleness model"));
  // Two scores for a model of four layers: the step that needs them fails.
  sg::collective::ParameterServer const short_of({.workers = 1});
  auto train = worker(Osp<osp::FixedImportance, osp::ShareLate>{.importance = {{1, 2}}}, short_of,
                      0, {2}, sgd, sg::host::Threads{1});
  auto const batch = data(1);
  static_cast<void>(run(train.step(batch)));
  CHECK_THROWS_WITH(run(train.step(batch)),
                    Catch::Matchers::Contains("FixedImportance has 2 scores"));
}

}  // namespace overlapped_test
