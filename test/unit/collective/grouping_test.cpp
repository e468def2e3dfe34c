// SPDX-License-Identifier: Apache-2.0
#include <stagger/collective/grouping.hpp>

#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "catch.hpp"
#include "collective/random_layers.hpp"

namespace grouping_test {

using namespace stagger;
using namespace stagger::collective;
using namespace stagger::collective::grouping;
using collective_test::Layers;
using collective_test::random_cost;
using collective_test::random_layers;
using Groups = std::vector<LayerGroup>;

static_assert(GroupingPolicy<Layerwise> && GroupingPolicy<Single> && GroupingPolicy<Greedy> &&
              GroupingPolicy<Optimal> && GroupingPolicy<Bucket> && GroupingPolicy<Named>);

namespace {

template <class Policy> double time_of(Policy policy, Layers const& layers, CostLine cost) {
  return evaluate(layers, policy.groups(layers, cost), cost).iteration_s;
}

/// Every way to cut L layers into groups.
template <class Visit> void each_grouping(int layers, Visit&& visit) {
  for (unsigned cuts = 0; cuts < 1U << (layers - 1); ++cuts) {
    Groups groups;
    int highest = layers;
    for (int l = layers; l >= 1; --l) {
      bool const cut = l == 1 || (cuts >> (l - 2) & 1U) != 0;
      if (!cut) continue;
      groups.push_back({highest, l});
      highest = l - 1;
    }
    visit(groups);
  }
}

/// The counterexample to theorem 1, at compile time.
constexpr double counter_times[] = {0.9, 0.9, 1};
constexpr std::uint64_t counter_bytes[] = {1, 1, 8};
template <class Policy> constexpr double counterexample(Policy policy) {
  Backward const layers{0, counter_times, counter_bytes};
  CostLine const cost{1, 0.1};
  return evaluate(layers, policy.groups(layers, cost), cost).iteration_s;
}
constexpr bool near(double a, double b) { return a - b < 1e-12 && b - a < 1e-12; }
static_assert(near(counterexample(Layerwise{}), 5.0));
static_assert(near(counterexample(Single{}), 4.8));
static_assert(near(counterexample(Greedy{}), 4.8), "the published rule merges all three layers");
static_assert(near(counterexample(Optimal{}), 4.0), "the best grouping sends layer 3 by itself");

}  // namespace

TEST_CASE("collective/grouping: theorem 1 has a counterexample, greedy 4.8 and best 4.0",
          "[collective]") {
  Layers const layers{0, {0.9, 0.9, 1}, {1, 1, 8}};
  CostLine const cost{1, 0.1};
  CHECK(Greedy{}.groups(layers, cost) == Groups{{3, 1}});
  CHECK(Optimal{}.groups(layers, cost) == Groups{{3, 3}, {2, 1}});
  CHECK(time_of(Greedy{}, layers, cost) == Approx(4.8));
  CHECK(time_of(Optimal{}, layers, cost) == Approx(4.0));
}

TEST_CASE("collective/grouping: the worked example is grouped as on paper", "[collective]") {
  Layers const layers{3, {3, 2, 2, 1}, {5, 30, 20, 10}};
  CostLine const cost{2, 0.1};
  CHECK(Layerwise{}.groups(layers, cost) == Groups{{4, 4}, {3, 3}, {2, 2}, {1, 1}});
  CHECK(Single{}.groups(layers, cost) == Groups{{4, 1}});
  CHECK(Greedy{}.groups(layers, cost) == Groups{{4, 4}, {3, 2}, {1, 1}});
  CHECK(time_of(Optimal{}, layers, cost) == Approx(16.5));
  CHECK(Bucket{25}.groups(layers, cost) == Groups{{4, 3}, {2, 2}, {1, 1}});
  CHECK(Bucket{10}.groups(layers, cost) == Groups{{4, 4}, {3, 3}, {2, 2}, {1, 1}});
  CHECK(Bucket{1000}.groups(layers, cost) == Groups{{4, 1}});
}

TEST_CASE("collective/grouping: optimal equals the best of all groupings, to the last bit (J3)",
          "[collective]") {
  std::mt19937 random(1);
  int worse = 0, trials = 0;
  double worst = 1;
  for (int most : {3, 6, 9, 9, 9, 12, 16}) {
    for (int trial = 0; trial < (most < 10 ? 300 : most < 16 ? 40 : 3); ++trial) {
      auto layers = random_layers(random, most);
      if (most == 16) {  // the full size, every time
        while (layers.bytes.size() < 16) layers = random_layers(random, most);
      }
      auto const cost = random_cost(random);
      double best = std::numeric_limits<double>::infinity();
      std::size_t fewest = 0;
      each_grouping(static_cast<int>(layers.bytes.size()), [&](Groups const& groups) {
        double const t = evaluate(layers, groups, cost).iteration_s;
        if (t < best)
          best = t, fewest = groups.size();
        else if (t == best)
          fewest = std::min(fewest, groups.size());
      });
      REQUIRE(time_of(Optimal{}, layers, cost) == best);
      REQUIRE(Optimal{}.groups(layers, cost).size() >= fewest);
      double const greedy = time_of(Greedy{}, layers, cost);
      if (greedy > best * (1 + 1e-12)) ++worse;
      worst = std::max(worst, greedy / best);
      ++trials;
    }
  }
  // That the published rule is not optimal is no rare accident.
  CHECK(worse * 10 > trials);
  CHECK(worst > 1.1);
}

TEST_CASE(
    "collective/grouping: optimal <= greedy <= layerwise and single (J3), above the bound (J4)",
    "[collective]") {
  std::mt19937 random(2);
  for (int trial = 0; trial < 2000; ++trial) {
    auto const layers = random_layers(random, 60, trial % 3 == 0);
    auto const cost = random_cost(random);
    double const optimal = time_of(Optimal{}, layers, cost);
    double const greedy = time_of(Greedy{}, layers, cost);
    REQUIRE(optimal <= greedy);
    REQUIRE(greedy <=
            std::min(time_of(Layerwise{}, layers, cost), time_of(Single{}, layers, cost)) + 1e-9);
    REQUIRE(optimal <= time_of(Bucket{100}, layers, cost));
    REQUIRE(optimal >= lower_bound_s(layers, cost) - 1e-9);
  }
}

TEST_CASE(
    "collective/grouping: a free start-up asks for layers, an expensive one for one message (J4)",
    "[collective]") {
  std::mt19937 random(3);
  for (int trial = 0; trial < 500; ++trial) {
    auto const layers = random_layers(random, 40);
    auto cost = random_cost(random);
    cost.startup_s = 0;
    REQUIRE(time_of(Layerwise{}, layers, cost) <= time_of(Optimal{}, layers, cost) + 1e-9);
    double span = 0;  // r(1) - r(L)
    for (double t : layers.backward_s) span += t;
    cost.startup_s = span * 1.001 + 1e-6;
    REQUIRE(Optimal{}.groups(layers, cost).size() == 1);
  }
}

TEST_CASE(
    "collective/grouping: where each message hides, only the last shows, and greedy merges none "
    "(J5)",
    "[collective]") {
  std::mt19937 random(4);
  int used = 0;
  for (int trial = 0; trial < 500; ++trial) {
    auto layers = random_layers(random, 40);
    auto cost = random_cost(random);
    for (std::size_t i = 0; i + 1 < layers.bytes.size(); ++i) {  // t_b(l-1) := at least t_c(l)
      layers.backward_s[i] += cost.seconds(layers.bytes[i + 1]) + 1e-9;
    }
    double const end = layers.compute_s() + cost.seconds(layers.bytes[0]);
    REQUIRE(time_of(Optimal{}, layers, cost) == Approx(end).epsilon(1e-12));
    REQUIRE(time_of(Greedy{}, layers, cost) == Approx(end).epsilon(1e-12));
    REQUIRE(Greedy{}.groups(layers, cost).size() == layers.bytes.size());
    ++used;
  }
  CHECK(used == 500);
}

TEST_CASE("collective/grouping: the best time never falls when anything gets slower or larger (J8)",
          "[collective]") {
  std::mt19937 random(5);
  for (int trial = 0; trial < 1000; ++trial) {
    auto layers = random_layers(random, 30);
    auto cost = random_cost(random);
    auto const fixed = Bucket{60}.groups(layers, cost);
    double const best = time_of(Optimal{}, layers, cost);
    double const fixed_time = evaluate(layers, fixed, cost).iteration_s;
    auto const i = random() % layers.bytes.size();
    switch (trial % 4) {
      case 0:
        cost.startup_s *= 1.1;
        break;
      case 1:
        cost.per_byte_s *= 1.1;
        break;
      case 2:
        layers.bytes[i] += 20;
        break;
      default:
        layers.backward_s[i] += 0.1;
    }
    REQUIRE(time_of(Optimal{}, layers, cost) >= best);
    REQUIRE(evaluate(layers, fixed, cost).iteration_s >= fixed_time);
  }
}

TEST_CASE("collective/grouping: every policy lists all layers once, layers without parameters too",
          "[collective]") {
  std::mt19937 random(6);
  for (int trial = 0; trial < 600; ++trial) {
    auto const layers = random_layers(random, 25, true);
    auto const cost = random_cost(random);
    for (char const* name : {"optimal", "greedy", "layerwise", "single", "bucket:70"}) {
      auto const groups = named(name).groups(layers, cost);
      auto const result = evaluate(layers, groups, cost);  // refuses gaps and overlaps
      std::size_t empty = 0;
      for (auto const& m : result.messages) empty += m.bytes == 0 ? 1 : 0;
      REQUIRE(empty <= 1);  // only below the lowest layer that learns
      if (empty == 1) REQUIRE(result.messages.back().bytes == 0);
    }
  }
  // 5: none, 4: some, 3: none, 2: some, 1: none
  Layers const layers{0, {1, 1, 1, 1, 1}, {0, 7, 0, 7, 0}};
  CHECK(Layerwise{}.groups(layers, {0.1, 0.001}) == Groups{{5, 4}, {3, 2}, {1, 1}});
}

TEST_CASE(
    "collective/grouping: leaving layers without parameters in or folding them down is the same",
    "[collective]") {
  std::mt19937 random(7);
  for (int trial = 0; trial < 500; ++trial) {
    auto const layers = random_layers(random, 25, true);
    auto const cost = random_cost(random);
    Layers folded{layers.forward_s, {}, {}};  // built from the top; turned round below
    double carried = 0;
    for (std::size_t i = layers.bytes.size(); i-- > 0;) {
      carried += layers.backward_s[i];
      if (layers.bytes[i] == 0) continue;
      folded.backward_s.push_back(carried);
      folded.bytes.push_back(layers.bytes[i]);
      carried = 0;
    }
    std::reverse(folded.backward_s.begin(), folded.backward_s.end());
    std::reverse(folded.bytes.begin(), folded.bytes.end());
    double const without = std::max(time_of(Optimal{}, folded, cost), layers.compute_s());
    REQUIRE(time_of(Optimal{}, layers, cost) == Approx(without).epsilon(1e-12));
  }
}

TEST_CASE("collective/grouping: no layer, one layer, one rank", "[collective]") {
  Layers const none{1, {}, {}}, one{1, {1}, {5}}, nothing{1, {1, 1}, {0, 0}};
  for (char const* name : {"optimal", "greedy", "layerwise", "single", "bucket:70"}) {
    CHECK(named(name).groups(none, {1, 1}).empty());
    CHECK(named(name).groups(one, {1, 1}) == Groups{{1, 1}});
    CHECK(named(name).groups(nothing, {1, 1}) == Groups{{2, 1}});
  }
  Layers const three{1, {1, 1, 1}, {5, 5, 5}};
  CHECK(Optimal{}.groups(three, CostLine{}).size() == 1);  // of equal ones the fewest messages
  CHECK(time_of(Optimal{}, three, CostLine{}) == 4);
}

TEST_CASE("collective/grouping: bad times, bad names and an empty bucket are refused",
          "[collective]") {
  Layers layers{1, {1, std::nan(""), 1}, {5, 5, 5}};
  for (char const* name : {"optimal", "greedy", "layerwise", "single", "bucket:70"}) {
    try {
      static_cast<void>(named(name).groups(layers, {1, 1}));
      FAIL(name);
    } catch (Error const& e) {
      CHECK(e.code() == Errc::bad_data);
      CHECK(std::string(e.what()).find("layer 2") != std::string::npos);
    }
  }
  for (char const* name :
       {"best", "", "bucket", "bucket:", "bucket:0", "bucket:-1", "bucket:1x", "Optimal"}) {
    CHECK_THROWS_AS(named(name), Error);
  }
  CHECK_THROWS_WITH(named("optimol"), "there is no grouping 'optimol'; the nearest is 'optimal'");
  CHECK_THROWS_WITH(named("bucket:0"),
                    "the grouping 'bucket:0' has no size above 0; write bucket:BYTES");
  CHECK_THROWS_WITH(named("single:5"), "the grouping 'single:5' takes no size; write single");
  CHECK(std::get<Bucket>(named("bucket:26214400").chosen).bytes == Bucket{}.bytes);
  CHECK_THROWS_AS(Bucket{0}.groups(Layers{1, {1}, {5}}, {1, 1}), Error);
}

}  // namespace grouping_test
