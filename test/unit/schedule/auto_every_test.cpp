// SPDX-License-Identifier: Apache-2.0
#include <stagger/schedule/auto.hpp>

#include <random>
#include <set>
#include <string_view>

#include <stagger/schedule/catalog.hpp>

#include "brute_force.hpp"
#include "catch.hpp"
#include "sanitized.hpp"

using namespace stagger;
using namespace stagger::schedule;

namespace {

constexpr int share = sanitized ? 8 : 1;  // of the rounds

using Random = std::mt19937;

int below(Random& random, int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); }

/// Stages that differ and edges that differ. Half of them without weight gradients, which leaves
/// the search little to fill gaps with, so that 1F1B's own orders count.
Costs random_costs(int stages, Random& random) {
  Costs costs;
  int const link = random() % 3 == 0 ? 0 : below(random, 60);
  bool const weights = random() % 2 == 0, alike = random() % 4 == 0, links_alike = random() % 2 > 0;
  for (int s = 0; s < stages; ++s) {
    costs.stages.push_back({.forward_s = 0.1 * (1 + below(random, 20)),
                            .backward_input_s = 0.1 * (1 + below(random, 30)),
                            .backward_weight_s = weights ? 0.1 * below(random, 12) : 0.0,
                            .transfer_s = 0.1 * (links_alike ? link : below(random, link + 1))});
    if (alike) costs.stages.back() = costs.stages.front();
  }
  return costs;
}

Limits random_limits(int most, Random& random) {
  switch (random() % 3) {
    case 0:
      return {.in_flight = 1 + below(random, most)};
    case 1:
      return {.memory = 1 + 0.5 * below(random, 2 * most), .weight_share = 0.25 * below(random, 5)};
    default:
      return {};
  }
}

/// Do all ranks keep the limits, with each whole backward held to its end?
bool fits(Table const& table, Limits const& limits) {
  auto const peak = peak_in_flight(table);
  if (limits.in_flight > 0 && *std::max_element(peak.begin(), peak.end()) > limits.in_flight)
    return false;
  for (int r = 0; r < table.ranks(); ++r) {
    std::vector<Action> row, behind;
    for (Action a : table.row(r)) {
      auto& to = a.overlaps_next && a.kind != Kind::forward ? behind : row;
      bool const whole = a.kind == Kind::backward;
      if (whole) a.kind = Kind::backward_input;
      to.push_back(a);
      if (whole) {
        a.kind = Kind::backward_weight;
        to.push_back(a);
      }
      if (&to == &behind) continue;  // a pair: its forward comes first
      row.insert(row.end(), behind.begin(), behind.end());
      behind.clear();
    }
    if (limits.memory > 0 && brute_force::held(row, limits.weight_share) > limits.memory + 1e-9)
      return false;
  }
  return true;
}

double seconds(Table const& table, Costs const& costs) {
  stagger::schedule::detail::LatestEnd latest;
  stagger::schedule::detail::play(table, stagger::schedule::detail::stage_times(table, costs),
                                  costs.overlap_s, latest);
  return latest.end_s;
}

/// The rows in which each stage stands.
using Places = std::set<std::pair<int, int>>;

Places places(Table const& table) {
  Places all;
  for (int r = 0; r < table.ranks(); ++r)
    for (Action const& a : table.row(r)) all.insert({a.stage, r});
  return all;
}

Places places(Mapping mapping, Shape shape) {
  Places all;
  int const P = shape.ranks;
  for (int s = 0; s < shape.stages(); ++s) {
    bool const up = mapping == Mapping::zigzag && s / P % 2 == 1;
    all.insert({s, up ? P - 1 - s % P : s % P});
    if (mapping == Mapping::bidirectional) all.insert({s, P - 1 - s});
  }
  return all;
}

/// Calls `with` for every value of every parameter of a schedule that makes a difference in a
/// shape. An in-flight limit below P leaves the gap without one, so three are enough there.
template <class With> void each_option(std::string_view name, Shape shape, int slices, With with) {
  int const P = shape.ranks, M = shape.microbatches;
  with(CatalogOptions{.slices = slices});
  if (name == "1f1b") {
    for (int depth = 0; depth <= M + P; ++depth) {
      for (int gap = 1; gap <= M; gap += depth > 0 && depth < P ? 1 + M / 2 : 1)
        with(CatalogOptions{.warmup = Warmup{gap}, .limits = {.in_flight = depth}});
    }
  }
  if (name == "interleaved" || name == "zb-h1") {
    for (int group = 1; group <= M; ++group) with(CatalogOptions{.group = group});
  }
}

/// Holds one answer of auto against all schedules of the catalog.
/// @return how many tables there were to hold it against
int compare(Auto const& policy, Shape shape) {
  Found found;
  try {
    found = policy.search(shape);
  } catch (Error const&) {
    found.makespan_s = 1e300;  // then nothing else keeps the limits
  }
  Places const mapping = places(policy.mapping, shape);
  if (found.table.stages > 0) {
    REQUIRE_FALSE(verify(found.table));
    REQUIRE(fits(found.table, policy.limits));
    REQUIRE(seconds(found.table, policy.costs) == Approx(found.makespan_s));
    REQUIRE(found.gap() >= -1e-12);
    REQUIRE(places(found.table) == mapping);
  }
  int compared = 0;
  for (CatalogEntry const& entry : catalog) {
    std::string_view const name = entry.name;
    if (name == "auto" || name == "fifo" || name == "pipedream" || name == "pipedream-2bw" ||
        name == "forward-only")
      continue;
    each_option(name, shape, policy.slices, [&](CatalogOptions const& options) {
      Table table;
      try {
        table = make_table(name, shape, options);
      } catch (Error const&) {
        return;  // not for this shape
      }
      if (table.slices != policy.slices || !fits(table, policy.limits)) return;
      if (places(table) != mapping) return;
      CAPTURE(name, static_cast<int>(options.warmup), options.group, options.limits.in_flight);
      double const theirs = seconds(table, policy.costs);
      if (found.makespan_s > theirs * (1 + 1e-12)) CHECK(found.makespan_s <= theirs);
      ++compared;
    });
  }
  return compared;
}

}  // namespace

TEST_CASE("schedule/Auto: one stage a rank, never worse than any schedule with any parameters",
          "[schedule]") {
  Random random(2024);
  int compared = 0;
  for (int round = 0; round < 240 / share; ++round) {
    int const P = 1 + below(random, 8), M = 1 + below(random, 32);
    Auto policy{random_costs(P, random), random_limits(2 * P + M / 2, random)};
    CAPTURE(round, P, M, policy.limits.in_flight, policy.limits.memory, policy.limits.weight_share);
    compared += compare(policy, {P, M});
  }
  CHECK(compared > 10000 / (2 * share));
}

TEST_CASE("schedule/Auto: slices, never worse than any schedule that cuts as many", "[schedule]") {
  Random random(5);
  int compared = 0;
  for (int round = 0; round < 200 / share; ++round) {
    int const P = 1 + below(random, 8), S = 2 + below(random, 4), M = P + below(random, 33 - P);
    Auto policy{.costs = random_costs(P, random),
                .limits = random_limits(2 * P + 2 * S, random),
                .slices = S};
    CAPTURE(round, P, M, S, policy.limits.in_flight, policy.limits.memory,
            policy.limits.weight_share);
    compared += compare(policy, {P, M});
  }
  CHECK(compared > 100 / (2 * share));
}

TEST_CASE("schedule/Auto: several stages a rank, never worse than any schedule on the same mapping",
          "[schedule]") {
  Random random(31);
  int compared = 0;
  for (int round = 0; round < 160 / share; ++round) {
    int const P = 1 + below(random, 8), V = 2 + below(random, 3),
              M = round % 2 == 0 ? P * (1 + below(random, std::max(1, 24 / P)))
                                 : 1 + below(random, 24);
    Mapping const mapping = V % 2 == 0 && round % 4 < 2 ? Mapping::zigzag : Mapping::looped;
    Auto policy{random_costs(P * V, random), random_limits(V * (P + 2), random), V, mapping};
    if (round % 5 == 0) policy.costs.overlap_s = 2.5;
    CAPTURE(round, P, M, V, static_cast<int>(mapping), policy.limits.in_flight,
            policy.limits.memory, policy.limits.weight_share);
    compared += compare(policy, {P, M, V});
  }
  CHECK(compared > 700 / (2 * share));
}

TEST_CASE("schedule/Auto: two directions, never worse than any schedule on the same mapping",
          "[schedule]") {
  Random random(8);
  int compared = 0;
  for (int round = 0; round < 120 / share; ++round) {
    int const P = 2 * (1 + below(random, 4)), M = 2 * (1 + below(random, 16));
    Auto policy{random_costs(P, random), random_limits(2 * P + 2, random), 1,
                Mapping::bidirectional};
    if (round % 3 == 0) policy.costs.overlap_s = 2.5;
    CAPTURE(round, P, M, policy.limits.in_flight, policy.limits.memory, policy.limits.weight_share);
    compared += compare(policy, {P, M});
  }
  CHECK(compared > 30 / (2 * share));
}
