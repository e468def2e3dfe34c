// SPDX-License-Identifier: Apache-2.0
#include <stagger/partition/pipe_dream.hpp>

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "catch.hpp"
#include "partition/random_model.hpp"

namespace pipe_dream_test {

using namespace partitions;
using stagger::partition::PipeDream;

namespace {

Cluster nodes_of(int nodes, int each, double inside, double between) {
  Cluster c{.name = "c", .devices = {}, .intra = {}, .inter = {.bytes_per_s = between}};
  for (int n = 0; n < nodes; ++n) {
    c.intra.push_back({.bytes_per_s = inside});
    for (int d = 0; d < each; ++d) c.devices.push_back({"V", 1'000'000, 1, n});
  }
  return c;
}

/// Times, parameters and boundaries of the profile, taken apart.
struct Chain {
  std::vector<double> seconds, parameters, boundary;  // boundary[l] behind layer l
  explicit Chain(Profile const& p) {
    for (auto const& l : p.layers) {
      seconds.push_back(l.forward_s + l.backward_s);
      parameters.push_back(static_cast<double>(l.parameter_bytes));
      boundary.push_back(static_cast<double>(l.activation_bytes));
    }
  }
  [[nodiscard]] int size() const { return static_cast<int>(seconds.size()); }
};

double sum(std::vector<double> const& v, int first, int last) {
  return std::accumulate(v.begin() + first, v.begin() + last, 0.0);
}

/// Every way to give `count` groups to stages; `one` is the time of layers on one group. Straight
/// from the definition: stages and boundaries each count, a boundary on both its sides, but the
/// first stage does not wait for what leaves it.
template <class One>
double every_way(Chain const& c, int first, int last, int count, double rate, int sharing,
                 One const& one) {
  double best = std::numeric_limits<double>::infinity();
  auto const go = [&](auto& self, int from, int left, double worst, bool begin) -> void {
    for (int to = from + 1; to <= last; ++to)
      for (int m = 1; m <= left; ++m) {
        if ((to == last) != (m == left) && (to == last || m == left)) continue;
        double now = std::max(
            worst,
            (one(from, to) + 4 * (m - 1) * sum(c.parameters, from, to) / (rate * m * sharing)) / m);
        auto const transfer = [&](int behind) {
          return 2 * c.boundary[static_cast<std::size_t>(behind)] / (rate * m);
        };
        if (!begin) now = std::max(now, transfer(from - 1));
        if (!begin && to < c.size()) now = std::max(now, transfer(to - 1));
        if (to == last)
          best = std::min(best, now);
        else
          self(self, to, left - m, now, false);
      }
  };
  go(go, first, count, 0, true);
  return best;
}

}  // namespace

TEST_CASE("partition/PipeDream: on one kind of link, the best of all replications", "[partition]") {
  Random random(1);
  for (int i = 0; i < 400; ++i) {
    auto p = model(random, pick(random, 1, 6), i % 2 == 0);
    for (auto& layer : p.layers) layer.by_device.clear();
    int const count = pick(random, 1, 5);
    double const rate = uniform(random, 0.5, 8);
    Chain const chain(p);
    auto const c = i % 3 == 0 ? nodes_of(1, count, rate, 1) : nodes_of(count, 1, 1, rate);
    auto const found = PipeDream{}.partition(stagger::partition::costs(p, c, numbered(count)));
    double const best = every_way(chain, 0, p.size(), count, rate, 1,
                                  [&](int a, int b) { return sum(chain.seconds, a, b); });
    CAPTURE(i, count, p.size());
    REQUIRE(found.bottleneck_s == Approx(best).epsilon(1e-12).margin(1e-300));
    // Stages tile the layers, and each device belongs to one of them.
    std::vector<int> all;
    for (auto const& stage : found.devices) all.insert(all.end(), stage.begin(), stage.end());
    std::sort(all.begin(), all.end());
    CHECK(all == numbered(count));
    CHECK(std::is_sorted(found.cuts.begin(), found.cuts.end()));
    for (double const s : found.stage_s) CHECK(s <= found.bottleneck_s * (1 + 1e-9));
  }
}

TEST_CASE("partition/PipeDream: in nodes of several, pipelines of the best pipelines of a node",
          "[partition]") {
  Random random(2);
  for (int i = 0; i < 150; ++i) {
    auto p = model(random, pick(random, 1, 6), i % 2 == 0);
    for (auto& layer : p.layers) layer.by_device.clear();
    int const nodes = pick(random, 2, 3), each = pick(random, 2, 3);
    double const inside = uniform(random, 2, 16), between = uniform(random, 0.5, 4);
    Chain const chain(p);
    std::map<std::pair<int, int>, double> node;
    auto const in_node = [&](int a, int b) {
      auto const [at, fresh] = node.try_emplace({a, b}, 0);
      if (fresh)
        at->second = every_way(chain, a, b, each, inside, 1,
                               [&](int x, int y) { return sum(chain.seconds, x, y); });
      return at->second;
    };
    double const best = every_way(chain, 0, p.size(), nodes, between, each, in_node);
    auto const c = nodes_of(nodes, each, inside, between);
    auto const found =
        PipeDream{}.partition(stagger::partition::costs(p, c, numbered(nodes * each)));
    CAPTURE(i, nodes, each, p.size());
    REQUIRE(found.bottleneck_s == Approx(best).epsilon(1e-12).margin(1e-300));
    std::vector<int> all;
    for (auto const& stage : found.devices) all.insert(all.end(), stage.begin(), stage.end());
    std::sort(all.begin(), all.end());
    CHECK(all == numbered(nodes * each));
  }
}

TEST_CASE("partition/PipeDream: unequal devices and uneven nodes are refused by their number",
          "[partition]") {
  Random random(3);
  auto const p = model(random, 5, false);
  auto c = nodes_of(2, 2, 1, 1);
  c.devices[3].speed = 2;
  CHECK_THROWS_WITH(PipeDream{}.partition(stagger::partition::costs(p, c, numbered(4))),
                    Catch::Contains("device 3 is of another kind than device 0"));
  c.devices[3].speed = 1;
  CHECK_THROWS_WITH(PipeDream{}.partition(stagger::partition::costs(p, c, numbered(3))),
                    Catch::Contains("nodes of 2"));
  CHECK_THROWS_WITH(PipeDream{}.partition(stagger::partition::costs(p, c, std::vector{0, 2, 1, 3})),
                    Catch::Contains("one after the other"));
}

}  // namespace pipe_dream_test
