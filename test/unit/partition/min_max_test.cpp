// SPDX-License-Identifier: Apache-2.0
#include <stagger/partition/min_max.hpp>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "catch.hpp"
#include "partition/branch_and_bound.hpp"
#include "partition/random_model.hpp"
#include "sanitized.hpp"

namespace min_max_test {

using namespace partitions;
using partition::MinMax;
using stagger::Error;

namespace {

double const none = std::numeric_limits<double>::infinity();

/// The best there is, by trying everything. With `order` empty every order is tried.
double brute_force(Profile const& p, Cluster const& c, std::vector<int> const& order, int stages,
                   int in_flight) {
  double best = none;
  auto const with = [&](std::vector<int> const& devices) {
    every_cut(p.size(), stages, [&](std::vector<int> const& bounds) {
      best = std::min(best, bottleneck(p, c, devices, bounds, in_flight));
    });
  };
  if (order.empty())
    every_order(c.size(), stages, with);
  else
    with(order);
  return best;
}

double solve(MinMax const& policy, Profile const& p, Cluster const& c) {
  auto const costs = partition::costs(p, c, numbered(c.size()));
  try {
    auto const found = policy.partition(costs);
    std::vector<int> order, bounds{0};
    for (auto const& d : found.devices) order.push_back(d.front());
    bounds.insert(bounds.end(), found.cuts.begin(), found.cuts.end());
    bounds.push_back(p.size());
    double const really = bottleneck(p, c, order, bounds, policy.in_flight);
    CHECK(found.bottleneck_s == Approx(really).margin(1e-12));
    CHECK(found.lower_bound_s == found.bottleneck_s);
    for (std::size_t s = 0; s < order.size(); ++s)
      CHECK(found.memory_bytes[s] <= c.device(order[s]).memory_bytes);
    return found.bottleneck_s;
  } catch (Error const& error) {
    CHECK_THAT(error.what(), Catch::Contains("no partition fits"));
    return none;
  }
}

bool same(double a, double b) {
  return a == b || std::abs(a - b) <= 1e-9 * std::max({std::abs(a), std::abs(b), 1.0});
}

}  // namespace

TEST_CASE("partition/MinMax: a given order gets the best cuts there are, memory kept",
          "[partition]") {
  Random random(1);
  int impossible = 0;
  for (int i = 0; i < 3000; ++i) {
    int const layers = pick(random, 1, 9);
    int const stages = pick(random, 1, std::min(layers, 4));
    auto const p = model(random, layers, i % 2 == 0);
    auto const c = devices(random, stages, 40, i % 3 == 0 ? 120 : 2000);
    MinMax const policy{.in_flight = pick(random, 1, 4)};
    double const best = brute_force(p, c, numbered(stages), stages, policy.in_flight);
    CAPTURE(i, layers, stages);
    REQUIRE(same(solve(policy, p, c), best));
    impossible += best == none ? 1 : 0;
  }
  CHECK(impossible > 100);  // both answers were asked for
  CHECK(impossible < 1500);
}

TEST_CASE("partition/MinMax: with free order, the best of all orders, memory kept", "[partition]") {
  Random random(2);
  int impossible = 0;
  for (int i = 0; i < 600; ++i) {
    int const layers = pick(random, 1, 7);
    int const stages = pick(random, 1, std::min(layers, 4));
    auto const p = model(random, layers, i % 2 == 0);
    auto const c = devices(random, stages, 40, i % 3 == 0 ? 120 : 2000);
    MinMax const policy{.any_order = true, .in_flight = pick(random, 1, 4)};
    double const best = brute_force(p, c, {}, stages, policy.in_flight);
    CAPTURE(i, layers, stages);
    REQUIRE(same(solve(policy, p, c), best));
    impossible += best == none ? 1 : 0;
  }
  CHECK(impossible > 10);
}

TEST_CASE("partition/MinMax: agrees with branch and bound on 30 layers and 8 devices in any order",
          "[partition]") {
  Random random(11);
  for (int i = 0; i < (sanitized ? 1 : 4); ++i) {
    auto const p = model(random, 30, false);
    auto const costs = partition::costs(p, devices(random, 8, 4000, 8000), numbered(8));
    double const same = MinMax{.any_order = true}.partition(costs).bottleneck_s;
    CAPTURE(i);
    CHECK(BranchAndBound(costs).bottleneck_s() == Approx(same).epsilon(1e-9));
  }
}

TEST_CASE("partition/MinMax: the table of orders has one for the optimum, and none below it",
          "[partition]") {
  Random random(77);
  int found = 0;
  for (int i = 0; i < 1500; ++i) {
    int const layers = pick(random, 2, 7), stages = pick(random, 2, std::min(layers, 4));
    auto const p = model(random, layers, i % 2 == 0);
    auto const c = devices(random, stages, 40, i % 3 == 0 ? 120 : 2000);
    double const best = brute_force(p, c, {}, stages, 2);
    if (best == none) continue;
    auto const costs = partition::costs(p, c, numbered(c.size()));
    partition::detail::AnyOrder table(costs, 2, 1U << 20);
    REQUIRE(table.possible());
    CAPTURE(i, layers, stages, best);
    REQUIRE(table.order(best * (1 + 1e-12)).size() == static_cast<std::size_t>(stages));
    if (best > 0) REQUIRE(table.order(best * (1 - 1e-9)).empty());
    ++found;
  }
  CHECK(found > 1000);
}

TEST_CASE("partition/MinMax: of equal bottlenecks, fewest bytes over the cuts, then the first cuts",
          "[partition]") {
  Random random(4);
  int ties = 0;
  for (int i = 0; i < 500; ++i) {
    int const layers = pick(random, 3, 8);
    int const stages = pick(random, 2, 3);
    auto p = model(random, layers, true);
    for (auto& layer : p.layers) {
      layer.forward_s = 1, layer.backward_s = pick(random, 0, 1);
      layer.by_device.clear();
    }
    auto c = devices(random, stages, 5000, 5000);
    for (auto& device : c.devices) device.speed = 1;
    c.inter = {.bytes_per_s = 1e300};
    for (auto& link : c.intra) link = c.inter;
    std::vector<int> best_cuts;
    double best = none, best_bytes = none;
    int equal = 0;
    every_cut(layers, stages, [&](std::vector<int> const& bounds) {
      std::vector<int> const cuts(bounds.begin() + 1, bounds.end() - 1);
      double const value = bottleneck(p, c, numbered(stages), bounds, 1);
      double bytes = 0;
      for (int const cut : cuts)
        bytes += static_cast<double>(p.layers[static_cast<std::size_t>(cut) - 1].activation_bytes);
      if (value > best) return;
      equal = value < best ? 1 : equal + 1;
      if (value < best || bytes < best_bytes) best_cuts = cuts, best_bytes = bytes;
      best = value;
    });
    ties += equal > 1 ? 1 : 0;
    CAPTURE(i);
    REQUIRE(MinMax{}.partition(partition::costs(p, c, numbered(stages))).cuts == best_cuts);
  }
  CHECK(ties > 100);
}

TEST_CASE("partition/MinMax: more memory, a faster device or a faster link never make it worse",
          "[partition]") {
  Random random(5);
  for (int i = 0; i < (sanitized ? 50 : 200); ++i) {
    int const count = pick(random, 2, 4);
    auto const p = model(random, pick(random, count, 8), false);
    auto const c = devices(random, count, 80, 400);
    for (bool const any : {false, true}) {
      MinMax const policy{.any_order = any, .in_flight = 2};
      double const before = solve(policy, p, c);
      auto richer = c;
      std::size_t const which = static_cast<std::size_t>(pick(random, 0, count - 1));
      richer.devices[which].memory_bytes *= 2;
      CHECK(solve(policy, p, richer) <= before);
      auto faster = c;
      // A kind of its own, so that times measured for its old kind do not stand in the way.
      if (faster.devices[which].kind != "c") {
        faster.devices[which].kind = "own";
        faster.devices[which].speed *= 2;
        CHECK(solve(policy, p, faster) <= before * (1 + 1e-12));
      }
      auto nearer = c;
      nearer.inter.bytes_per_s *= 2;
      CHECK(solve(policy, p, nearer) <= before * (1 + 1e-12));
    }
  }
}

TEST_CASE("partition/MinMax: one device holds all, as many devices as layers hold one each",
          "[partition]") {
  Random random(6);
  for (int i = 0; i < 50; ++i) {
    int const layers = pick(random, 1, 12);
    auto const p = model(random, layers, false);
    auto const all = devices(random, layers, 100000, 100000);
    auto const one =
        MinMax{.any_order = i % 2 == 0}.partition(partition::costs(p, all, std::vector{0}));
    CHECK(one.cuts.empty());
    CHECK(one.devices == std::vector<std::vector<int>>{{0}});
    auto const each = MinMax{}.partition(partition::costs(p, all, numbered(layers)));
    for (int s = 1; s < layers; ++s) CHECK(each.cuts[static_cast<std::size_t>(s) - 1] == s);
  }
}

TEST_CASE("partition/MinMax: the optimum is at least the work over the sum of speeds",
          "[partition]") {
  Random random(7);
  for (int i = 0; i < 50; ++i) {
    auto p = model(random, 30, false);
    for (auto& layer : p.layers) layer.by_device.clear();
    auto const c = devices(random, 6, 1000000, 1000000);
    double work = 0, speed = 0;
    for (auto const& layer : p.layers) work += layer.forward_s + layer.backward_s;
    for (auto const& device : c.devices) speed += device.speed;
    auto const found = MinMax{.any_order = true}.partition(partition::costs(p, c, numbered(6)));
    CHECK(found.bottleneck_s >= work / speed * (1 - 1e-12));
    auto swapped = c;  // two equal devices in one node: nothing changes
    std::swap(swapped.devices[0], swapped.devices[1]);
    if (c.device(0).node == c.device(1).node)
      CHECK(same(MinMax{.any_order = true}
                     .partition(partition::costs(p, swapped, numbered(6)))
                     .bottleneck_s,
                 found.bottleneck_s));
  }
}

TEST_CASE("partition/MinMax: where the table is too large, the gap that is printed is honest",
          "[partition]") {
  Random random(8);
  for (int i = 0; i < 40; ++i) {
    auto const p = model(random, 14, false);
    auto const c = devices(random, 6, 1000000, 1000000);
    auto const costs = partition::costs(p, c, numbered(6));
    auto const exact = MinMax{.any_order = true}.partition(costs);
    auto const searched = MinMax{.any_order = true, .most_states = 1}.partition(costs);
    CHECK(searched.lower_bound_s <= exact.bottleneck_s * (1 + 1e-12));
    CHECK(searched.bottleneck_s >= exact.bottleneck_s * (1 - 1e-12));
    CHECK(searched.bottleneck_s <= exact.bottleneck_s * 1.05);
    CHECK(exact.gap() == 0);
  }
}

TEST_CASE("partition/MinMax: what cannot be names layer, device and bytes, and what would do",
          "[partition]") {
  Profile p{.name = "p", .batch = 1, .device = "V", .layers = {}};
  for (int l = 0; l < 4; ++l)
    p.layers.push_back({.forward_s = 1,
                        .backward_s = 1,
                        .activation_bytes = 10,
                        .parameter_bytes = l == 2 ? 100U : 10U});
  Cluster c{
      .name = "c", .devices = {{"V", 330, 1, 0}, {"V", 330, 1, 0}}, .intra = {{}}, .inter = {}};
  auto const costs = partition::costs(p, c, numbered(2));
  // Layer 2 needs (2 + 1) * 100 + 10 = 310 bytes alone on the last stage with layer 3: 350.
  CHECK_THROWS_WITH(MinMax{}.partition(costs),
                    Catch::Contains("stage 0") || Catch::Contains("layer 2"));
  c.devices[0].memory_bytes = c.devices[1].memory_bytes = 360;
  CHECK_NOTHROW(MinMax{}.partition(partition::costs(p, c, numbered(2))));
  // With three in flight the first stage's three versions still fit, one more boundary does not.
  CHECK_THROWS_WITH((MinMax{.in_flight = 5}.partition(partition::costs(p, c, numbered(2)))),
                    Catch::Contains("its largest is layer 2") &&
                        Catch::Contains("it fits with 2 in flight, or with 1.") &&
                        Catch::Contains("times the memory"));
  c.devices[0].memory_bytes = c.devices[1].memory_bytes = 300;
  CHECK_THROWS_WITH(MinMax{}.partition(partition::costs(p, c, numbered(2))),
                    Catch::Contains("layer 2, which alone needs 310 bytes; it fits with 1.16"));
  CHECK_THROWS_WITH(MinMax{}.partition(partition::costs(p, c, std::vector<int>{})),
                    Catch::Contains("no device"));
  c.devices.insert(c.devices.end(), 3, {"V", 300, 1, 0});
  CHECK_THROWS_WITH(MinMax{}.partition(partition::costs(p, c, numbered(5))),
                    Catch::Contains("5 stages cannot be made of 4 layers; use 1 to 4"));
  CHECK_THROWS_WITH((MinMax{.in_flight = 0}.partition(costs)), Catch::Contains("0 minibatches"));
  CHECK_THROWS_WITH(partition::costs(p, c, std::vector{0, 0}), Catch::Contains("named twice"));
  CHECK_THROWS_WITH(partition::costs(p, c, std::vector{9}), Catch::Contains("device 9"));
  c.devices[0].memory_bytes = c.devices[1].memory_bytes = 1'000'000'000;
  c.devices[0].memory_bytes = c.devices[1].memory_bytes = 1'000'000'000;
  p.layers[2].parameter_bytes = 9'000'000'000'000'000'000U;  // 3 times as many are no long long
  CHECK_THROWS_WITH(MinMax{}.partition(partition::costs(p, c, numbered(2))),
                    Catch::Contains("alone needs 25749206542968.8 MiB"));
  p.layers[1].forward_s = -1;
  CHECK_THROWS_WITH(partition::costs(p, c, numbered(2)), Catch::Contains("forward_s = -1"));
}

}  // namespace min_max_test
