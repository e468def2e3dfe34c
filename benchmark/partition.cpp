// SPDX-License-Identifier: Apache-2.0
// Partitioners: how long they take, and how good their partitions are.
//
//   MinMax     random layers with transfers and memory limits: a long chain on equal devices, and
//              16 devices of eight kinds in any order, with each kind in one node or in two nodes
//   PipeDream  the paper's published profiles, if STAGGER_PROFILES names their folder; speed-ups
//              are relative to one device, and have the published ones as targets

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include <stagger/cluster/graph_txt.hpp>
#include <stagger/partition/min_max.hpp>
#include <stagger/partition/pipe_dream.hpp>

#include "support/rows.hpp"

namespace {

namespace cluster = stagger::cluster;
namespace partition = stagger::partition;

constexpr int repetitions = 9;

cluster::Profile layers(int count) {
  std::mt19937_64 random(1);
  std::uniform_real_distribution<> share(0, 1);
  cluster::Profile p{.name = "random", .batch = 1, .device = "a", .layers = {}};
  for (int l = 0; l < count; ++l)
    p.layers.push_back({.forward_s = share(random) * 1e-3,
                        .backward_s = share(random) * 2e-3,
                        .activation_bytes = static_cast<std::uint64_t>(share(random) * 1e6),
                        .parameter_bytes = static_cast<std::uint64_t>(share(random) * 1e6)});
  return p;
}

partition::Costs costs(cluster::Profile const& p, cluster::Cluster const& c) {
  std::vector<int> ids(static_cast<std::size_t>(c.size()));
  std::iota(ids.begin(), ids.end(), 0);
  return partition::costs(p, c, ids);
}

partition::Costs chain() {
  cluster::Cluster c{.name = "", .devices = {}, .intra = {{1e-5, 1e10, {}}}, .inter = {}};
  c.devices.assign(64, {"a", 100'000'000, 1, 0});
  return costs(layers(1000), c);
}

/// Two devices of each of eight kinds; with the two of a kind in one node, or in two nodes.
partition::Costs kinds(bool apart) {
  cluster::Cluster c{.name = "", .devices = {}, .intra = {}, .inter = {1e-5, 1e9, {}}};
  c.intra.assign(apart ? 4 : 8, {1e-5, 1e10, {}});
  for (int d = 0; d < 16; ++d) {
    int const kind = apart ? d % 8 : d / 2;
    c.devices.push_back({std::string(1, static_cast<char>('a' + kind)), 100'000'000,
                         0.4 + 0.2 * kind, apart ? d / 4 : d / 2});
  }
  return costs(layers(60), c);
}

cluster::Cluster sixteen(bool nested) {
  cluster::Cluster c{.name = "", .devices = {}, .intra = {}, .inter = {.bytes_per_s = 1.25e9}};
  c.intra.assign(nested ? 4 : 16, {.bytes_per_s = 10e9});
  for (int d = 0; d < 16; ++d) c.devices.push_back({"a", 1ULL << 40, 1, nested ? d / 4 : d});
  return c;
}

bench::Row at_most(std::string const& what, std::string const& name, double bound_s,
                   double most_gap) {
  return {what, name, [=](bench::Results const& results) {
            double const took_s = results.time_s(name);
            double const gap = results.counter(name, "gap");
            bool const good = took_s <= bound_s && gap <= most_gap;
            return bench::Line{
                bench::text("%.3g ms, %s", took_s * 1e3,
                            gap == 0 ? "exact" : bench::text("gap %.2f %%", gap * 100).c_str()),
                bench::text("at most %g ms, %s", bound_s * 1e3,
                            most_gap == 0 ? "exact" : "exact or a gap of at most 1 %"),
                good ? bench::Grade::passed : bench::Grade::failed};
          }};
}

bench::Row speed_up(std::string const& what, std::string const& name, double published) {
  return {what, name, [=](bench::Results const& results) {
            double const took_s = results.time_s(name);
            double const reached = results.counter(name, "speed_up");
            // The published figures have only two decimals.
            bool const good = took_s <= 20e-3 && reached >= published - 0.005;
            return bench::Line{bench::text("%.3g ms, speed-up %.3f", took_s * 1e3, reached),
                               bench::text("at most 20 ms, at least %.2f", published),
                               good ? bench::Grade::passed : bench::Grade::failed};
          }};
}

void add(std::string const& name, partition::Costs const& problem,
         partition::MinMax const& policy) {
  bench::add(name, repetitions, [problem, policy](benchmark::State& state) {
    partition::Partition found;
    bench::time_each(state, [&] { found = policy.partition(problem); });
    state.counters["gap"] = found.gap();
  });
}

}  // namespace

int main(int argc, char** argv) {
  std::string const long_chain = "partition/MinMax, 1000 layers, 64 equal devices";
  std::string const together = "partition/MinMax, free order, a node for each kind";
  std::string const apart = "partition/MinMax, free order, kinds over nodes";
  add(long_chain, chain(), {});
  add(together, kinds(false), {.any_order = true});
  add(apart, kinds(true), {.any_order = true});
  std::vector<bench::Row> rows{
      at_most("MinMax: 1000 layers, 64 equal devices", long_chain, 10e-3, 0),
      at_most("MinMax: 60 layers, 8 kinds, 16 devices in free order", together, 1, 0.01),
      at_most("MinMax: the same, each kind in two nodes", apart, 1, 0.01)};

  char const* const folder = std::getenv("STAGGER_PROFILES");
  struct Published {
    char const* model;
    double flat, nested;
  };
  for (auto const& [model, flat, nested] :
       {Published{"vgg16", 12.27, 10.02}, Published{"resnet50", 10.11, 10.26},
        Published{"gnmt", 5.22, 8.07}}) {
    if (folder == nullptr || *folder == 0) break;
    std::string const path = std::string(folder) + "/pipedream/" + model + ".graph.txt";
    std::ifstream file(path);
    std::string const text{std::istreambuf_iterator<char>(file), {}};
    auto const profile = cluster::read_graph_txt(text, path, 1);
    for (bool const in_nodes : {false, true}) {
      std::string const name =
          std::string("partition/PipeDream, ") + model + (in_nodes ? ", 4x4" : ", flat 16");
      auto const problem = costs(profile, sixteen(in_nodes));
      bench::add(name, repetitions, [problem](benchmark::State& state) {
        partition::Partition found;
        bench::time_each(state, [&] { found = partition::PipeDream{}.partition(problem); });
        state.counters["speed_up"] = problem.compute_s(0, 0, problem.layers()) / found.bottleneck_s;
      });
      rows.push_back(speed_up(name.substr(10), name, in_nodes ? nested : flat));
    }
  }
  if (rows.size() == 3)
    std::puts("PipeDream is left out: STAGGER_PROFILES names no folder with measured profiles");
  return bench::run(argc, argv, rows);
}
