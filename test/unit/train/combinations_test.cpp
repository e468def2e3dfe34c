// SPDX-License-Identifier: Apache-2.0
// Pairs of features: those that go together train as one device does, the others say the sentence of their rule.
#include <stagger/core/combinations.hpp>

#include "catch.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <stagger/collective/all_reduce.hpp>
#include <stagger/collective/grouped_pushes.hpp>
#include <stagger/collective/grouping/layerwise.hpp>
#include <stagger/collective/parameter_server.hpp>
#include <stagger/core/random.hpp>
#include <stagger/engine/groups.hpp>
#include <stagger/engine/replicas.hpp>
#include <stagger/engine/run_together.hpp>
#include <stagger/host/threads.hpp>
#include <stagger/partition/layer_split.hpp>
#include <stagger/schedule/named.hpp>
#include <stagger/sim/clock.hpp>
#include <stagger/sim/virtual_clock.hpp>
#include <stagger/staleness/local_sgd.hpp>
#include <stagger/staleness/overlapped_synchronous.hpp>
#include <stagger/staleness/stale_synchronous.hpp>
#include <stagger/staleness/wave_synchronous.hpp>
#include <stagger/staleness/weight_stashing.hpp>
#include <stagger/train/pipeline.hpp>

#include "engine/split_model.hpp"

namespace combinations_test {

namespace sg = stagger;
namespace feature = sg::detail::feature;
using sg::detail::Features;
using sg::detail::Rule;
using split_model::Linear;

namespace {

/// What may differ. Of each kind, 0 is the usual choice.
enum Kind : std::size_t {
  schedule,
  staleness,
  replicas,
  split,
  collective,
  device,
  optimizer,
  clips,
  skips,
  recomputes,
  checks,
  records,
  enqueues,
  in_turn,
  kinds
};
enum Schedule { with_flush, without_flush, bidirectional, on_a_v };
enum Staleness { synchronous, weight_stashing, stale_synchronous, local_sgd, overlapped, waves };
enum Split { whole, accumulates, each_pass };
enum Collective { sums, shards, by_library, server, grouped };
constexpr std::array<int, kinds> values{4, 6, 2, 3, 5, 2, 2, 2, 2, 2, 2, 2, 2, 2};
using Case = std::array<int, kinds>;

constexpr std::size_t width = 8;

/// What is not the weight of a layer as a whole becomes not a number.
struct Whole : sg::optimizer::Sgd {
  static constexpr bool element_wise = false;
  template <class T>
  void update(sg::OptimizerView<T> const& v, double scale, std::int64_t step) const noexcept {
    Sgd::update(v, v.size == width * width || v.size == width ? scale : std::nan(""), step);
  }
  template <class T>
  void change(sg::OptimizerView<T> const& v, double scale, std::int64_t step) const noexcept {
    Sgd::change(v, v.size == width * width || v.size == width ? scale : std::nan(""), step);
  }
};

bool serves(Case const& of) { return of[collective] >= server; }
bool streams(Case const& of) { return of[staleness] == weight_stashing || of[staleness] == waves; }

bool is_replicated(Case const& of) { return of[replicas] != 0 || of[split] != whole; }
/// Each worker makes one push of a stage, for which the functions for replicas add up its owners.
bool owners_are_replicas(Case const& of) { return of[schedule] == bidirectional && serves(of); }

/// Whether the types of a pipeline fit, of which test/compile_fail has programs, and its numbers.
bool fits(Case const& of) {
  bool const model_of_workers = of[staleness] >= stale_synchronous;
  return model_of_workers ? serves(of) : of[staleness] == synchronous || !serves(of);
}

Features features_of(Case const& of) {
  Features const all =
      (of[device] == 0 ? feature::of_threads : feature::of_virtual_clock)
          .with(feature::no_flush, of[schedule] == without_flush)
          .with(feature::two_owners, of[schedule] == bidirectional)
          .with(feature::synchronous, !streams(of))
          .with(feature::asynchronous, streams(of))
          .with(feature::workers_model, of[staleness] >= stale_synchronous)
          .with(feature::averages, of[staleness] == local_sgd)
          .with(feature::late, of[staleness] == overlapped)
          .with(feature::adds_in_turn,
                of[in_turn] != 0 && (of[staleness] == stale_synchronous || of[staleness] == waves))
          .with(feature::replicas, is_replicated(of) || owners_are_replicas(of))
          .with(feature::all_replicated, is_replicated(of))
          .with(feature::layer_split, of[split] != whole)
          .with(feature::each_pass, of[split] == each_pass)
          .with(feature::shards, of[collective] == shards)
          .with(feature::by_library, of[collective] == by_library)
          .with(feature::server, serves(of))
          .with(feature::grouped_pushes, of[collective] == grouped)
          .with(feature::whole_parameters, of[optimizer] != 0)
          .with(feature::clips, of[clips] != 0)
          .with(feature::skips, of[skips] != 0)
          .with(feature::recomputes, of[recomputes] != 0 || of[checks] != 0)
          .with(feature::checks_recompute, of[checks] != 0)
          .with(feature::records, of[records] != 0)
          .with(feature::enqueue, of[enqueues] != 0);
  return all;
}

auto model() {
  return sg::Pipeline{
      sg::Sequential{Linear<double>{width, width, 1}, Linear<double>{width, width, 2},
                     Linear<double>{width, width, 3}, Linear<double>{width, width, 4}}};
}
split_model::Batch<double> batch(int step) {
  split_model::Batch<double> made;
  for (std::uint64_t m = 0; m < 4; ++m)
    for (auto* const of : {&made.inputs, &made.targets})
      of->push_back(split_model::numbers<double>(
          4, width, static_cast<std::uint64_t>(step) * 10 + 2 * m + (of == &made.inputs ? 1 : 2)));
  return made;
}
constexpr int steps = 3;
sg::optimizer::Sgd const sgd{.rate = 0.05};

template <class Train> std::vector<double> numbers_of(Train& train) {
  std::vector<double> all;
  for (auto const& state : train.parameters()) {
    auto const* const first = reinterpret_cast<double const*>(state.value.data());
    all.insert(all.end(), first, first + state.value.size() / sizeof(double));
  }
  return all;
}

/// One device, which updates after each microbatch if `alone`.
std::vector<double> expected(bool clipped, bool alone) {
  sg::Options options;
  if (clipped) options.clip_norm = 0.5;
  auto one = model().on_one_device(sg::loss::MeanSquaredError<double>{}, sgd, options);
  for (int step = 0; step < steps; ++step) {
    auto const whole_batch = batch(step);
    if (!alone) static_cast<void>(one.step(whole_batch));
    for (std::size_t m = 0; alone && m < whole_batch.inputs.size(); ++m) {
      split_model::Batch<double> single;
      single.inputs.push_back(whole_batch.inputs[m]);
      single.targets.push_back(whole_batch.targets[m]);
      static_cast<void>(one.step(single));
    }
  }
  return numbers_of(one);
}

/// @tparam by_step  else by stream
template <bool by_step, class... Policy>
std::vector<double> trained_with(Case const& of, Policy const&... policy) {
  sg::schedule::Named order{.name = "1f1b"};
  std::vector<int> cuts{2};
  if (of[schedule] == without_flush) order = {.name = "fifo", .limits = {.in_flight = 1}};
  if (of[schedule] == bidirectional) order.name = "chimera";
  if (of[schedule] == on_a_v) {
    order.name = "zb-v";
    cuts = {1, 2, 3};
  }
  sg::Options options;
  if (of[clips] != 0) options.clip_norm = 0.5;
  if (of[skips] != 0) options.non_finite = sg::NonFinite::skip;
  options.recompute = of[recomputes] != 0 || of[checks] != 0;
  options.check_recompute = of[checks] != 0;
  options.record = of[records] != 0;
  if (is_replicated(of))
    options.replicas = {2, 2};
  else if (owners_are_replicas(of))
    options.replicas = {1, 1};
  auto train =
      model().with(sg::partition::LayerSplit<>{.group = of[split] == whole ? 1 : 2,
                                               .over = {cuts},
                                               .threshold = 0,
                                               .update = of[split] == each_pass
                                                             ? sg::partition::Update::each_pass
                                                             : sg::partition::Update::accumulate},
                   order, options, sg::loss::MeanSquaredError<double>{}, policy...);
  for (int step = 0; step < steps; ++step) {
    auto const now = batch(step);
    auto const take = [&](auto taken) {
      if (of[enqueues] != 0)
        static_cast<void>(enqueue(std::move(taken)).wait());
      else
        static_cast<void>(sg::run(std::move(taken)));
    };
    if constexpr (by_step)
      take(train.step(now));
    else
      take(train.stream(now));
  }
  return numbers_of(train);
}

template <class Device, class Rule>
std::vector<double> trained_on(Case const& of, Device const& there, Rule const& rule) {
  using namespace sg::staleness;
  namespace co = sg::collective;
  sg::collective::ParameterServer const home({.workers = 1});
  auto const alone = [&]<class Stale>(Stale const& stale) {
    co::AllReduce<> sum;
    sum.shard_optimizer = of[collective] == shards;
    if (of[collective] == by_library) sum.by = co::By::library;
    return trained_with<Stale::synchronous>(of, there, rule, stale, sum);
  };
  auto const pushing = [&]<class Stale>(Stale const& stale) {
    if (of[collective] == grouped)
      return trained_with<Stale::synchronous>(
          of, there, rule, stale, co::GroupedPushes{home.worker(0), co::grouping::Layerwise{}});
    return trained_with<Stale::synchronous>(of, there, rule, stale, home.worker(0));
  };
  Adds const adds = of[in_turn] != 0 ? Adds::in_turn : Adds::in_worker_order;
  switch (of[staleness]) {
    case synchronous:
      return serves(of) ? pushing(Synchronous{}) : alone(Synchronous{});
    case weight_stashing:
      return alone(WeightStashing{});
    case stale_synchronous:
      return pushing(StaleSynchronous{.adds = adds});
    case local_sgd:
      return pushing(LocalSgd{.period = 1});
    case overlapped:
      return pushing(
          OverlappedSynchronous<>{.budget = {.rate = 1e6, .computation_s = 1e-3, .steps = 2}});
    default:
      // As many as the schedule has in flight at most.
      return pushing(
          WaveSynchronous{.in_flight = of[schedule] == without_flush ? 1 : 4, .adds = adds});
  }
}

std::vector<double> trained(Case const& of) {
  auto const by = [&](auto const& there) {
    return of[optimizer] == 0 ? trained_on(of, there, sgd) : trained_on(of, there, Whole{sgd});
  };
  sg::sim::VirtualClock clock;
  if (serves(of)) clock.clock = sg::sim::Clock{};
  return of[device] == 0 ? by(sg::host::Threads{2}) : by(clock);
}

/// The rule that is told: those of what `with` is given come before those of what it finds out later,
/// that layers are really shared, and that a stage has several owners.
Rule told(Case const& of) {
  Features const all = features_of(of);
  Features given = all;
  for (Features const later : {feature::each_pass, feature::two_owners})
    given = given.without(later);
  for (Features const features :
       {given, given.with(feature::each_pass, of[split] == each_pass), all})
    if (Rule const rule = sg::detail::refusing(features); rule != Rule::none) return rule;
  return Rule::none;
}

/// Plays a case: it trains as one device does, or ends in the sentence of a rule.
void play(Case const& of) {
  std::string words;
  for (int const value : of) words += std::to_string(value) + " ";
  CAPTURE(words);
  if (Rule const rule = told(of); rule != Rule::none) {
    std::string const says = feature::rules[static_cast<unsigned>(rule)].says;
    CHECK_THROWS_WITH(trained(of), Catch::Matchers::EndsWith(says));
    return;
  }
  static std::array const one{expected(false, false), expected(true, false), expected(false, true)};
  std::vector<double> wanted = one[streams(of) ? 2 : static_cast<unsigned>(of[clips])];
  // Where the schedule says how old the weights are, other tests compare with a loop.
  if (of[split] == each_pass || (streams(of) && of[schedule] != without_flush)) {
    Case in_virtual_time{};
    for (Kind const kind : {schedule, staleness, split, collective})
      in_virtual_time[kind] = of[kind];
    in_virtual_time[device] = 1;
    wanted = trained(in_virtual_time);
  }
  std::vector<double> found;
  try {
    found = trained(of);
  } catch (sg::Error const& error) {
    FAIL_CHECK(error.what());
    return;
  }
  REQUIRE(found.size() == wanted.size());
  double apart = 0;
  for (std::size_t i = 0; i < found.size(); ++i)
    apart = std::max(apart, std::abs(found[i] - wanted[i]));
  bool const adds_in_another_order = is_replicated(of) || of[schedule] == bidirectional;
  CHECK(apart <= (adds_in_another_order ? 1e-13 : 0));
}

/// A case with two choices and what they need.
Case with(std::size_t a, int x, std::size_t b, int y) {
  Case of{};
  of[a] = x;
  of[b] = y;
  auto const chosen = [&](std::size_t kind) { return kind == a || kind == b; };
  if (of[in_turn] != 0 && !chosen(staleness)) of[staleness] = stale_synchronous;
  if (of[schedule] == without_flush && !chosen(staleness))
    of[staleness] = serves(of) ? waves : weight_stashing;
  if (of[staleness] >= stale_synchronous && !chosen(collective)) of[collective] = server;
  if (streams(of) && !chosen(schedule)) of[schedule] = without_flush;
  return of;
}

}  // namespace

TEST_CASE("train/combinations: a loop on the calling thread repeats and records nothing, alone",
          "[train]") {
  auto const bits_with = [](sg::Options const& options) {
    auto one = model().on_one_device(sg::loss::MeanSquaredError<double>{}, sgd, options);
    for (int step = 0; step < steps; ++step) static_cast<void>(one.step(batch(step)));
    return numbers_of(one);
  };
  auto const plain = bits_with({});
  CHECK(bits_with({.recompute = true}) == plain);
  CHECK(bits_with({.record = true}) == plain);
  CHECK(bits_with({.replicas = {2, 2}}) == plain);
}

TEST_CASE("train/combinations: each pair trains as one device, or says the sentence of its rule",
          "[train]") {
  int pairs = 0;
  for (std::size_t a = 0; a < kinds; ++a)
    for (std::size_t b = 0; b < a; ++b)
      for (int x = 1; x < values[a]; ++x)
        for (int y = 1; y < values[b]; ++y) {
          Case const of = with(a, x, b, y);
          if (!fits(of)) continue;
          play(of);
          ++pairs;
        }
  CHECK(pairs > 200);
}

TEST_CASE(
    "train/combinations: an optimizer of whole parameters trains as one device wherever it may",
    "[train]") {
  int played = 0;
  Case of{};
  of[optimizer] = 1;
  for (of[schedule] = 0; of[schedule] < values[schedule]; ++of[schedule])
    for (of[staleness] = 0; of[staleness] < values[staleness]; ++of[staleness])
      for (of[replicas] = 0; of[replicas] < values[replicas]; ++of[replicas])
        for (of[collective] = 0; of[collective] < values[collective]; ++of[collective])
          for (of[device] = 0; of[device] < values[device]; ++of[device]) {
            if (!fits(of) || told(of) != Rule::none) continue;
            play(of);
            ++played;
          }
  CHECK(played > 80);
}

TEST_CASE("train/combinations: of several rules against a pipeline, the first is told", "[train]") {
  int refused = 0;
  for (std::uint64_t n = 0; refused < 150; ++n) {
    Case of{};
    for (std::size_t kind = 0; kind < kinds; ++kind)
      of[kind] =
          static_cast<int>(sg::random_bits(11, {n, kind}) % static_cast<unsigned>(values[kind]));
    if (!fits(of) || told(of) == Rule::none) continue;
    play(of);
    ++refused;
  }
}

}  // namespace combinations_test
