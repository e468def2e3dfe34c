// SPDX-License-Identifier: Apache-2.0
#include <stagger/plan/virtual_workers.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include <stagger/cluster/presets.hpp>

#include "catch.hpp"
#include "hetpipe_models.hpp"
#include "sanitized.hpp"

namespace virtual_workers_test {

using namespace stagger;

namespace {

cluster::Profile chain(std::mt19937& random, int layers) {
  auto const below = [&](unsigned end) { return static_cast<double>(random() % end); };
  cluster::Profile profile{.name = "chain", .batch = 4, .device = "a", .layers = {}};
  for (int l = 0; l < layers; ++l)
    profile.layers.push_back({.name = "l",
                              .forward_s = 1 + below(5),
                              .backward_s = 2 + below(9),
                              .activation_bytes = static_cast<std::uint64_t>(below(300)),
                              .parameter_bytes = static_cast<std::uint64_t>(below(3000)),
                              .stash_bytes = static_cast<std::uint64_t>(below(500))});
  return profile;
}

/// Two nodes of two devices, of two kinds.
cluster::Cluster boxes(double memory, double rate) {
  cluster::Cluster cluster{.name = "boxes", .inter = {.alpha_s = 0.01, .bytes_per_s = rate}};
  for (int node = 0; node < 2; ++node) {
    cluster.intra.push_back({.bytes_per_s = 5 * rate});
    for (int d = 0; d < 2; ++d)
      cluster.devices.push_back({.kind = node == 0 ? "a" : "b",
                                 .memory_bytes = static_cast<std::uint64_t>(memory * (2 - node)),
                                 .speed = node == 0 ? 1.0 : 0.4,
                                 .node = node});
  }
  return cluster;
}

/// The slowest stage of each cut and order that fits; of the best of them.
std::optional<double> best_bottleneck(cluster::Profile const& p, cluster::Cluster const& c,
                                      std::vector<int> const& devices, int n, double copies) {
  std::optional<double> best;
  std::vector<std::size_t> order(devices.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  do {
    for (int cut = 1; cut < p.size(); ++cut) {
      std::array<int, 3> const bounds{0, cut, p.size()};
      double worst = 0;
      bool fits = true;
      for (std::size_t s = 0; s < 2; ++s) {
        int const device = devices[order[s]], other = devices[order[1 - s]];
        double bytes = 0, seconds = 0;
        double const crossing = static_cast<double>(p.layer(cut - 1).activation_bytes);
        for (int l = bounds[s]; l < bounds[s + 1]; ++l) {
          bytes += copies * static_cast<double>(p.layer(l).parameter_bytes) +
                   static_cast<double>(p.layer(l).stash()) * (s == 0 ? n : 1);
          seconds += c.times(p.layer(l), device).total_s();
        }
        if (s == 1) bytes += (n - 1) * crossing;
        seconds += c.transfer_s(other, device, crossing);
        worst = std::max(worst, seconds);
        fits = fits && bytes <= static_cast<double>(c.device(device).memory_bytes);
      }
      if (fits && (!best || worst < *best)) best = worst;
    }
  } while (std::next_permutation(order.begin(), order.end()));
  return best;
}

double bottleneck(plan::VirtualWorker const& worker, cluster::Profile const& p,
                  cluster::Cluster const& c) {
  double worst = 0;
  for (std::size_t s = 0; s < worker.stages.size(); ++s) {
    auto const& stage = worker.stages[s];
    double seconds = stage.forward_s + stage.backward_s;
    auto const crossing = [&](std::size_t left) {
      return c.transfer_s(worker.stages[left].device, worker.stages[left + 1].device,
                          static_cast<double>(p.layer(worker.stages[left].last).activation_bytes));
    };
    if (s > 0) seconds += crossing(s - 1);
    if (s + 1 < worker.stages.size()) seconds += crossing(s);
    worst = std::max(worst, seconds);
  }
  return worst;
}

}  // namespace

TEST_CASE(
    "plan/VirtualWorkers: on small clusters, the best of all allocations, cuts and placements",
    "[plan]") {
  std::mt19937 random(7);
  int refused = 0, local = 0, limited = 0;
  for (int i = 0; i < (sanitized ? 15 : 60); ++i) {
    auto const p = chain(random, 2 + static_cast<int>(random() % 4));
    auto const c = boxes(6e3 + static_cast<double>(random() % 50'000),
                         200 + static_cast<double>(random() % 3000));
    int const distance = static_cast<int>(random() % 2);
    CAPTURE(i, p.size(), distance, c.device(0).memory_bytes, c.inter.bytes_per_s);
    plan::VirtualWorkers const all{
        .workers = 2, .distance = distance, .most_in_flight = 4, .state_copies = 1};
    // By hand: which workers there are, how many minibatches fit into all of them.
    std::vector<std::vector<std::vector<int>>> const groups{
        {{0, 1}, {2, 3}}, {{0, 2}, {1, 3}}, {{0, 2}, {1, 3}}};
    double best = 0;
    int fewest = 0;
    for (int n = 1; n <= 4; ++n)
      for (std::size_t a = 0; a < 3; ++a) {
        bool fits = true;
        for (auto const& devices : groups[a])
          fits = fits && best_bottleneck(p, c, devices, n, n + distance + 3 + 1 + 1);
        for (auto const parameters : placement::ParameterPlacement::all()) {
          plan::VirtualWorkers one = all;
          one.in_flight = n;
          one.allocations = {placement::Allocation::all()[a]};
          one.parameters = {parameters};
          if (!fits || (a == 0 && parameters == placement::Local{})) {
            REQUIRE_THROWS_AS(one.plan(p, c), Error);
            continue;
          }
          auto const made = one.plan(p, c);
          REQUIRE(made.workers.size() == 2);
          for (std::size_t w = 0; w < 2; ++w) {
            REQUIRE(bottleneck(made.workers[w], p, c) ==
                    Approx(*best_bottleneck(p, c, groups[a][w], n, n + distance + 5)));
            bool const second =
                best_bottleneck(p, c, groups[a][w], 2, 2 + distance + 5).has_value();
            REQUIRE((made.workers[w].limiting_device < 0) == (n > 1 || second));
            limited += n > 1 || second ? 0 : 1;
            for (auto const& stage : made.workers[w].stages) {
              REQUIRE(stage.memory_bytes <= stage.capacity_bytes);
              if (stage.device == made.workers[w].limiting_device)
                REQUIRE(made.workers[w].wanted_bytes > stage.capacity_bytes);
            }
          }
          if (parameters == placement::Local{})
            for (auto const& stage : made.workers[0].stages)
              for (int l = stage.first; l <= stage.last; ++l)
                REQUIRE(made.layer_nodes[static_cast<std::size_t>(l)] == stage.node);
          if (made.samples_per_s > best * (1 + 1e-9)) {
            best = made.samples_per_s;
            fewest = n;
          }
        }
      }
    if (best == 0) {
      REQUIRE_THROWS_WITH(all.plan(p, c), Catch::Contains("minibatches in flight"));
      ++refused;
      continue;
    }
    auto const plan = all.plan(p, c);
    REQUIRE(plan.samples_per_s == best);
    REQUIRE(plan.in_flight == fewest);
    local += plan.parameters == placement::Local{} ? 1 : 0;
    // A worker's pipeline has the order of the play.
    auto const played = schedule::play_workers(plan.played(), plan.server(), 3 * plan.in_flight);
    auto const table = plan.schedule(0).table({2, 3 * plan.in_flight});
    for (int s = 0; s < 2; ++s) {
      auto const row = table.row(s);
      auto const spans = played[0].timeline.row(s);
      REQUIRE(
          std::equal(row.begin(), row.end(), spans.begin(), spans.end(),
                     [](auto const& action, auto const& span) { return action == span.action; }));
    }
  }
  int const times = sanitized ? 1 : 3;
  CHECK(refused >= times);
  CHECK(local >= times);
  CHECK(limited >= times);
}

TEST_CASE("plan/VirtualWorkers: more in flight than memory names the worker and what fits",
          "[plan]") {
  auto const cluster = tool::hetpipe::usable();
  auto const profile = tool::hetpipe::vgg19();
  plan::VirtualWorkers np{.in_flight = 6, .allocations = {placement::NodePartition{}}};
  REQUIRE_THROWS_WITH(
      np.plan(profile, cluster),
      Catch::Contains("worker 2 (GGGG) has no memory for 6 minibatches in flight") &&
          Catch::Contains("the most that fits is 4"));
  np.in_flight = 4;
  CHECK(np.plan(profile, cluster).in_flight == 4);
  // Changes and snapshots of more waves take memory too.
  np.distance = 4;
  REQUIRE_THROWS_WITH(np.plan(profile, cluster), Catch::Contains("the most that fits is 2"));
}

TEST_CASE("plan/VirtualWorkers: refuses what cannot be planned", "[plan]") {
  auto const cluster = tool::hetpipe::usable();
  auto const profile = tool::hetpipe::resnet152();
  REQUIRE_THROWS_WITH((plan::VirtualWorkers{.workers = 0}.plan(profile, cluster)),
                      Catch::Contains("workers cannot be 0"));
  REQUIRE_THROWS_WITH((plan::VirtualWorkers{.distance = -1}.plan(profile, cluster)),
                      Catch::Contains("distance cannot be -1"));
  REQUIRE_THROWS_WITH((plan::VirtualWorkers{.parameters = {}}.plan(profile, cluster)),
                      Catch::Contains("parameters"));
  REQUIRE_THROWS_WITH((plan::VirtualWorkers{.workers = 3}.plan(profile, cluster)),
                      Catch::Contains("NodePartition wants"));
  REQUIRE_THROWS_WITH((plan::VirtualWorkers{.in_flight = 2,
                                            .allocations = {placement::NodePartition{}},
                                            .parameters = {placement::Local{}}}
                           .plan(profile, cluster)),
                      Catch::Contains("local parameters need equal cuts"));
  REQUIRE_THROWS_WITH((plan::VirtualWorkers{.allocations = {placement::NodePartition{}},
                                            .parameters = {placement::Local{}}}
                           .plan(profile, cluster)),
                      Catch::Contains("local parameters need equal cuts"));
  cluster::Profile timeless{.name = "timeless", .batch = 1, .device = "V", .layers = {}};
  timeless.layers.resize(4);
  REQUIRE_THROWS_WITH(plan::VirtualWorkers{}.plan(timeless, cluster),
                      Catch::Contains("take these workers no time"));
  timeless.layers[0] = {.forward_s = 1, .parameter_bytes = 9'000'000'000'000'000'000U};
  REQUIRE_THROWS_WITH(plan::VirtualWorkers{}.plan(timeless, cluster),
                      Catch::Contains("would need 42915344238281.3 MiB of "));
}

namespace {

/// Waves of which the first eight are in step, and the others up to `later` apart.
struct SlowStart {
  int in_flight = 1, later = 0;
  [[nodiscard]] int minibatches() const { return in_flight; }
  [[nodiscard]] int needs(int m) const {
    int const waves = (m + 1) / in_flight - 1;
    return waves < 8 ? waves : std::max(7, waves - later);
  }
};

}  // namespace

TEST_CASE("plan/VirtualWorkers: takes workers with a staleness model of one's own", "[plan]") {
  std::mt19937 random(7);
  auto const profile = chain(random, 5);
  auto const cluster = boxes(1e6, 300);
  plan::VirtualWorkers const planner{
      .workers = 2, .distance = 3, .in_flight = 2, .allocations = {placement::NodePartition{}}};
  auto const with = [&](int later) {
    return planner.plan(profile, cluster, [=](int n) { return SlowStart{n, later}; });
  };
  plan::VirtualWorkers in_step = planner;
  in_step.distance = 0;
  double const tight = in_step.plan(profile, cluster).samples_per_s;
  double const loose = planner.plan(profile, cluster).samples_per_s;
  auto const mine = with(3);
  CAPTURE(tight, mine.samples_per_s, loose);
  CHECK(mine.samples_per_s > tight);
  CHECK(with(0).samples_per_s == Approx(tight).epsilon(0.05));
  SlowStart const model{2, 3};
  auto const played = schedule::play_workers(mine.played(), mine.server(model), 40);
  auto const table = mine.schedule(1, model).table({2, 40});
  for (int s = 0; s < 2; ++s) {
    std::vector<schedule::Action> row;
    for (auto const& span : played[1].timeline.row(s)) row.push_back(span.action);
    CHECK(std::equal(row.begin(), row.end(), table.row(s).begin(), table.row(s).end()));
  }
  REQUIRE_THROWS_WITH(with(4),
                      Catch::Contains("lets minibatch 23 begin 4 waves ahead of the "
                                      "slowest worker, but VirtualWorkers::distance is 3"));
}

}  // namespace virtual_workers_test
