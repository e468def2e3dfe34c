// SPDX-License-Identifier: Apache-2.0
#include <stagger/plan/dapple.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <stagger/cluster/presets.hpp>
#include <stagger/plan/auto.hpp>
#include <stagger/plan/replan.hpp>

#include "catch.hpp"
#include "dapple_models.hpp"
#include "sanitized.hpp"

namespace dapple_test {

using namespace stagger;
using namespace stagger::plan;

namespace {

/// A random chain on a random cluster of equal devices.
struct Case {
  cluster::Profile profile;
  cluster::Cluster cluster;
  Request request;
};

Case random_case(std::mt19937& random, int most_layers, int most_devices) {
  auto const between = [&](double low, double high) {
    return std::uniform_real_distribution<>(low, high)(random);
  };
  Case c;
  c.profile = {.name = "random", .batch = 1 + static_cast<int>(random() % 2)};
  int const layers = 2 + static_cast<int>(random() % static_cast<unsigned>(most_layers - 1));
  for (int l = 0; l < layers; ++l) {
    double const f = between(1e-3, 5e-3);
    c.profile.layers.push_back({.forward_s = f,
                                .backward_s = f * between(1.5, 2.5),
                                .activation_bytes = static_cast<std::uint64_t>(between(1e5, 5e6)),
                                .parameter_bytes = static_cast<std::uint64_t>(between(1e6, 4e7))});
  }
  int const each = 1 + static_cast<int>(random() % 3);
  int const nodes = std::max(1, most_devices / each);
  c.cluster = cluster::dapple_a(nodes, each);
  c.request = {.batch = c.profile.batch * (6 + static_cast<int>(random() % 30))};
  return c;
}

/// The estimate of a draft, from the definitions alone.
double estimate(Case const& c, Draft const& d) {
  std::size_t most = 1;
  for (auto const& s : d.stages) most = std::max(most, s.devices.size());
  int const M = c.request.batch / (c.profile.batch * static_cast<int>(most));
  if (M < 1) return std::numeric_limits<double>::infinity();
  double const mb = static_cast<double>(c.request.batch) / M;
  std::vector<StageTime> v;
  for (std::size_t i = 0; i < d.stages.size(); ++i) {
    auto const& s = d.stages[i];
    double const slice = std::ceil(mb / static_cast<double>(s.devices.size()) - 1e-9);
    StageTime t;
    double bytes = 0;
    for (int l = s.first; l < s.end; ++l) {
      auto const& layer = c.profile.layers[static_cast<std::size_t>(l)];
      t.forward_s += layer.forward_s * slice / c.profile.batch;
      t.backward_s += layer.backward_s * slice / c.profile.batch;
      bytes += static_cast<double>(layer.parameter_bytes);
    }
    t.all_reduce_s = c.cluster.all_reduce_s(s.devices, bytes);
    v.push_back(t);
    if (i + 1 == d.stages.size()) break;
    // Rows by rows: which sample, in units of 1 / (a b), goes from whom to whom.
    auto const& to = d.stages[i + 1].devices;
    double const crossing =
        static_cast<double>(
            c.profile.layers[static_cast<std::size_t>(s.end - 1)].activation_bytes) *
        mb / c.profile.batch;
    std::size_t const rows = s.devices.size() * to.size();
    std::vector<std::vector<double>> pair(s.devices.size(), std::vector<double>(to.size(), 0.0));
    for (std::size_t row = 0; row < rows; ++row)
      pair[row / to.size()][row / s.devices.size()] += crossing / static_cast<double>(rows);
    double transfer = 0;
    for (int node = 0; node < c.cluster.nodes(); ++node) {
      double out = 0, in = 0, inside = 0;
      for (std::size_t a = 0; a < s.devices.size(); ++a)
        for (std::size_t b = 0; b < to.size(); ++b) {
          bool const from_here = c.cluster.device(s.devices[a]).node == node;
          bool const to_here = c.cluster.device(to[b]).node == node;
          if (from_here && to_here) inside = std::max(inside, pair[a][b]);
          if (from_here && !to_here) out += pair[a][b];
          if (!from_here && to_here) in += pair[a][b];
        }
      transfer = std::max({transfer, out / 3.125e9, in / 3.125e9, inside / 25e9});
    }
    v.push_back({transfer, transfer});
  }
  return latency(v, M).seconds;
}

/// The best estimate over all cuts, replicas and device sets that the three rules reach.
double brute_force(Case const& c) {
  double best = std::numeric_limits<double>::infinity();
  placement::Occupancy all;
  for (int n = 0; n < c.cluster.nodes(); ++n)
    all.size.push_back(static_cast<int>(c.cluster.devices_of(n).size()));
  all.taken.assign(all.size.size(), 0);
  int const N = c.profile.size();
  std::function<void(Draft, placement::Occupancy)> const extend = [&](Draft d,
                                                                      placement::Occupancy o) {
    int const first = d.stages.empty() ? 0 : d.stages.back().end;
    std::vector<int> rest(o.size.size());
    for (std::size_t n = 0; n < rest.size(); ++n) rest[n] = o.free(n);
    Draft whole = d;
    whole.stages.push_back({first, N, o.devices(rest)});
    best = std::min(best, estimate(c, whole));
    for (int m = 1; m < o.free(); ++m) {
      std::set<std::vector<int>> const fills{placement::FreshFirst{}.fill(o, m),
                                             placement::AppendFirst{}.fill(o, m),
                                             placement::ScatterFirst{}.fill(o, m)};
      for (auto const& fill : fills)
        for (int end = first + 1; end < N; ++end) {
          Draft next = d;
          next.stages.push_back({first, end, o.devices(fill)});
          auto with = o;
          for (std::size_t n = 0; n < fill.size(); ++n) with.taken[n] += fill[n];
          extend(next, with);
        }
    }
  };
  extend({}, all);
  return best;
}

void check_tiling(Plan const& p, Workload const& w) {
  int next = 0;
  std::set<int> used;
  for (auto const& s : p.stages) {
    CHECK(s.first == next);
    CHECK(s.last >= s.first);
    next = s.last + 1;
    for (int const id : s.devices) CHECK(used.insert(id).second);
    CHECK(s.memory_bytes <= s.capacity_bytes);
  }
  CHECK(next == w.layers());
  CHECK(std::vector<int>(used.begin(), used.end()) == w.devices());
}

}  // namespace

TEST_CASE("plan/Dapple: the search finds what brute force finds, up to 8 layers and 6 devices",
          "[plan]") {
  std::mt19937 random(29);
  for (int round = 0; round < 40; ++round) {
    Case const c = random_case(random, 8, 2 + static_cast<int>(random() % 5));
    Workload const w(c.profile, c.cluster, c.request);
    Plan const found = Dapple{}.plan(w);
    double const best = brute_force(c);
    CAPTURE(round, c.profile.size(), c.cluster.name, c.request.batch);
    // Gradients that overlap with one stage's backward may beat every plan of the search space.
    bool const beyond = found.gradients == Gradients::overlapped;
    CHECK(found.latency_s <= best * (1 + 1e-9));
    if (!beyond && found.stages.size() < w.devices().size())
      CHECK(found.latency_s == Approx(best).epsilon(1e-9));
    check_tiling(found, w);
  }
}

TEST_CASE("plan/Auto: never slower than Dapple when simulated, never below the bound", "[plan]") {
  std::mt19937 random(31);
  double gained = 0;
  int rounds = 0;
  for (; rounds < 25; ++rounds) {
    Case const c = random_case(random, 8, 6);
    Workload const w(c.profile, c.cluster, c.request);
    Plan const by_estimate = Dapple{}.plan(w);
    Plan const by_simulation = Auto{.budget = 50'000, .simulations = 2'000}.plan(w);
    CAPTURE(rounds, c.profile.size(), c.cluster.name, c.request.batch);
    CHECK(by_simulation.simulated_s <= by_estimate.simulated_s);
    CHECK(by_simulation.lower_bound_s <= by_simulation.simulated_s * (1 + 1e-12));
    CHECK(by_estimate.lower_bound_s <= by_estimate.simulated_s * (1 + 1e-12));
    CHECK(by_simulation.gap == Approx(by_simulation.simulated_s / by_simulation.lower_bound_s - 1));
    check_tiling(by_simulation, w);
    gained += 1 - by_simulation.simulated_s / by_estimate.simulated_s;
  }
  CHECK(gained / rounds > 0.01);
}

TEST_CASE(
    "plan/Dapple: by its own estimate never above data parallelism, straight pipelines and "
    "all cuts in two, and the same each time (I8, I9)",
    "[plan]") {
  for (auto const& cluster :
       {cluster::dapple_a(2, 8), cluster::dapple_b(16), cluster::dapple_c(16)}) {
    if (sanitized && cluster.nodes() > 2) continue;  // the same code
    Workload const w(dapple_models::bert(), cluster, {.batch = 64});
    Plan const p = Dapple{}.plan(w);
    check_tiling(p, w);
    CHECK(p == Dapple{}.plan(w));
    CHECK(p.latency_s <= DataParallel{}.plan(w).latency_s);
    CHECK(p.latency_s <= Straight{}.plan(w).latency_s);
    Evaluator evaluator(w);
    placement::Occupancy const all = w.free();
    for (int r = 1; r < 16; ++r)
      for (auto const& fill :
           {placement::FreshFirst{}.fill(all, r), placement::ScatterFirst{}.fill(all, r)}) {
        auto const front = all.devices(fill);
        std::vector<int> back;
        for (int const id : w.devices())
          if (!std::binary_search(front.begin(), front.end(), id)) back.push_back(id);
        for (int cut = 1; cut < w.layers(); ++cut) {
          auto const two = evaluator({.stages = {{0, cut, front}, {cut, w.layers(), back}}}, "two");
          if (two && two->latency_s < p.latency_s) FAIL("cut " << cut << ", " << r << " devices");
        }
      }
  }
}

TEST_CASE("plan/Dapple: one device, one layer, unequal devices", "[plan]") {
  auto const bert = dapple_models::bert();
  Workload const alone(bert, cluster::dapple_a(1, 1), {.batch = 8});
  CHECK(Dapple{}.plan(alone).stages.size() == 1);
  CHECK(Dapple{}.plan(alone).speedup == Approx(1));
  auto one = bert;
  one.layers.resize(1);
  CHECK(Dapple{}.plan(Workload(one, cluster::dapple_a(1, 4), {.batch = 8})).stages.size() == 1);

  for (auto const& [model, devices] : {std::pair{bert, 1}, std::pair{one, 4}})
    CHECK_THROWS_WITH(Dapple{.form = Form::printed}.plan(
                          Workload(model, cluster::dapple_b(devices), {.batch = 8})),
                      Catch::Contains("cuts a model in two or more"));

  cluster::Cluster unequal = cluster::dapple_b(2);
  unequal.devices[1].kind = "slow";
  unequal.devices[1].speed = 0.5;
  Workload const w(bert, unequal, {.batch = 64});
  Plan const p = Auto{.budget = 50'000}.plan(w);
  REQUIRE(p.stages.size() == 2);
  int const fast = p.stages[0].devices[0] == 0 ? 0 : 1;
  auto const layers = [&](int s) {
    auto const& stage = p.stages[static_cast<std::size_t>(s)];
    return stage.last - stage.first + 1;
  };
  CHECK(layers(fast) > 1.6 * layers(1 - fast));
  CHECK(p.lower_bound_s <= p.simulated_s);
}

TEST_CASE("plan/Dapple: what fits nowhere names layer, resource, numbers, and what would do",
          "[plan]") {
  auto const fails = [](Workload const& w) {
    try {
      (void)Dapple{}.plan(w);
    } catch (Infeasible const& no) {
      return no;
    }
    throw std::runtime_error("it fits");
  };
  auto small = cluster::dapple_b(2);
  for (auto& d : small.devices) d.memory_bytes = 3'200'000'000;
  auto const model = dapple_models::bert(24, 6);  // 24 layers of 50 MB, states of four times that
  {
    Workload const w(model, small, {.batch = 12});
    Infeasible const no = fails(w);
    CHECK(no.shortage().resource == Resource::memory);
    CHECK(no.shortage().needed > 3.2e9);
    CHECK(no.shortage().available == 3.2e9);
    CHECK(no.shortage().layer >= 0);
    CHECK(std::string(no.what()).find(" of memory with one microbatch") != std::string::npos);
    std::string const change = "it fits with microbatches of ";
    auto const at = std::string(no.what()).find(change);
    REQUIRE(at != std::string::npos);
    int const size = std::stoi(std::string(no.what()).substr(at + change.size()));
    CHECK_NOTHROW(Dapple{}.plan(Workload(model, small, {.batch = 12, .microbatch = size})));
    CHECK_THROWS_AS(Dapple{}.plan(Workload(model, small, {.batch = 12, .microbatch = size + 1})),
                    Infeasible);
  }
  {  // one layer too large for any device
    auto huge = model;
    huge.layers[5].parameter_bytes = 2'000'000'000;
    Infeasible const no = fails(Workload(huge, small, {.batch = 12}));
    CHECK(no.shortage().layer == 5);
    CHECK(std::string(no.what()).find("layer 5 ('layer_5')") != std::string::npos);
  }
  {
    Infeasible const no = fails(Workload(model, small, {.batch = 2}));
    CHECK(no.shortage().resource == Resource::samples);
    CHECK(std::string(no.what()).find("batch of 2 samples") != std::string::npos);
  }
  CHECK_THROWS_AS(Straight{}.plan(Workload(model, cluster::dapple_b(40), {.batch = 64})),
                  Infeasible);
}

TEST_CASE("plan/Dapple: little memory shortens the warm-up, and the plan says so", "[plan]") {
  auto tight = cluster::dapple_b(4);
  for (auto& d : tight.devices) d.memory_bytes = 1'000'000'000;
  auto model = dapple_models::bert(24, 2);
  for (auto& l : model.layers) l.parameter_bytes /= 4;
  for (auto& l : model.layers) l.stash_bytes = 40'000'000;
  Workload const w(model, tight, {.batch = 32});
  Plan const p = Dapple{}.plan(w);
  check_tiling(p, w);
  CHECK(std::any_of(p.stages.begin(), p.stages.end(),
                    [](auto const& s) { return s.limit == Limit::memory; }));
  Workload const again(model, tight, {.batch = 32, .recompute = true});
  Plan const q = Dapple{}.plan(again);
  CHECK(q.stages.front().memory_bytes < p.stages.front().capacity_bytes);
  CHECK(Auto{.budget = 50'000}.plan(w).simulated_s <= p.simulated_s);
}

TEST_CASE(
    "plan/Dapple: the memory that a plan holds is enough to find it, also with few microbatches",
    "[plan]") {
  std::mt19937 random(81);
  int few = 0;  // plans of fewer microbatches than stages
  for (int i = 0; i < 200; ++i) {
    Case c = random_case(random, 8, 6);
    c.profile.batch = 1;
    for (auto& l : c.profile.layers) {
      l.stash_bytes = static_cast<std::uint64_t>(1 + random() % 3'000'000);
      l.parameter_bytes /= 40;
    }
    c.cluster = cluster::dapple_b(2 + static_cast<int>(random() % 6));
    c.request.batch = 1 + static_cast<int>(random() % 4);
    Plan p;
    try {
      p = Dapple{}.plan(Workload(c.profile, c.cluster, c.request));
    } catch (Infeasible const&) {
      continue;  // fewer samples than it takes
    }
    double most = 0;
    for (auto const& s : p.stages) most = std::max(most, s.memory_bytes);
    for (auto& d : c.cluster.devices) d.memory_bytes = static_cast<std::uint64_t>(std::ceil(most));
    Plan const again = Dapple{}.plan(Workload(c.profile, c.cluster, c.request));
    CAPTURE(i, p.microbatches, p.stages.size(), most);
    CHECK(again.latency_s <= p.latency_s * (1 + 1e-12));
    few += p.microbatches < static_cast<int>(p.stages.size()) ? 1 : 0;
  }
  CHECK(few > 10);
}

TEST_CASE("plan/Replan: the loss of any of 16 devices is planned around", "[plan]") {
  for (auto const& cluster : {cluster::dapple_a(2, 8), cluster::dapple_c(16)}) {
    auto const model = dapple_models::bert();
    Plan const before = Dapple{}.plan(Workload(model, cluster, {.batch = 64}));
    for (int const lost : {0, 7, 8, 15}) {
      if (sanitized && lost != 7) continue;
      Workload const left(model, cluster, {.batch = 64, .without = {lost}});
      Plan const after = Replan{}.plan(before, left);
      check_tiling(after, left);
      CAPTURE(cluster.name, lost);
      CHECK(after.simulated_s <= Dapple{}.plan(left).simulated_s * 1.02);
    }
  }
}

TEST_CASE("plan/Replan: a plan of another model is refused", "[plan]") {
  auto model = dapple_models::bert();
  Workload const w(model, cluster::dapple_b(4), {.batch = 64});
  Plan before = Straight{}.plan(w);
  model.layers.resize(20);
  CHECK_THROWS_WITH(Replan{}.plan(before, Workload(model, cluster::dapple_b(4), {.batch = 64})),
                    Catch::Contains("hold 50 layers one after the other, the profile has 20"));
  CHECK_THROWS_WITH(Replan{}.plan({}, w), Catch::Contains("hold 0 layers"));
  before.stages[1].first += 1;
  CHECK_THROWS_WITH(Replan{}.plan(before, w), Catch::Contains("one after the other"));
}

TEST_CASE("plan/Auto: a profile of very many samples has no microbatches that overflowed",
          "[plan]") {
  auto model = dapple_models::bert();
  model.batch = (1 << 30) + 1;  // four times as many would be 4
  Workload const w(model, cluster::dapple_b(2), {.batch = 64});
  CHECK_THROWS_AS((Auto{.budget = 1'000, .simulations = 0}.plan(w)), Infeasible);
}

TEST_CASE("plan/evaluate: drafts that are no plans are refused by number", "[plan]") {
  Workload const w(dapple_models::bert(), cluster::dapple_b(4), {.batch = 64});
  auto const says = [&](Draft const& d, char const* words) {
    try {
      (void)evaluate(w, d);
    } catch (Error const& error) {
      CHECK(std::string(error.what()).find(words) != std::string::npos);
      return;
    }
    FAIL("no error");
  };
  says({.stages = {{0, 10, {0}}}}, "end before layer 10 of 50");
  says({.stages = {{0, 10, {0}}, {11, 50, {1}}}}, "layer 10 of 50 comes next");
  says({.stages = {{0, 10, {0}}, {10, 50, {0}}}}, "device 0 is used by stage 0 and by stage 1");
  says({.stages = {{0, 10, {}}, {10, 50, {0}}}}, "stage 0 has no device");
  says({.stages = {{0, 50, {4}}}}, "device 4, which is not there");
  says({.stages = {{0, 50, {1, 0}}}}, "do not rise");
  auto const refuses = [](Request r, char const* words) {
    try {
      Workload const bad(dapple_models::bert(), cluster::dapple_b(4), r);
    } catch (Error const& error) {
      CHECK(std::string(error.what()).find(words) != std::string::npos);
      return;
    }
    FAIL("no error");
  };
  refuses({.batch = 0}, "a batch of 0 samples");
  refuses({.batch = 8, .microbatch = -1}, "microbatches of -1");
  refuses({.batch = 8, .memory_factor = std::nan("")}, "memory factor of nan");
  refuses({.batch = 8, .without = {4}}, "device 4 cannot be left out");
  refuses({.batch = 8, .without = {0, 1, 2, 3}}, "every device is left out");
}

}  // namespace dapple_test
