// SPDX-License-Identifier: Apache-2.0
#include <stagger/schedule/auto.hpp>

#include <array>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <stagger/schedule/named.hpp>
#include <stagger/schedule/proof/verify.hpp>

#include "brute_force.hpp"
#include "catch.hpp"
#include "full.hpp"
#include "sanitized.hpp"

namespace auto_every_test {

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

/// Most activations that a rank holds, each whole backward held to its end.
double held(Table const& table, double weight_share) {
  double most = 0;
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
    most = std::max(most, brute_force::held(row, weight_share));
  }
  return most;
}

/// Do all ranks keep the limits?
bool fits(Table const& table, Limits const& limits) {
  auto const peak = peak_in_flight(table);
  if (limits.in_flight > 0 && *std::max_element(peak.begin(), peak.end()) > limits.in_flight)
    return false;
  return limits.memory == 0 || held(table, limits.weight_share) <= limits.memory + 1e-9;
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
template <class With>
void each_option(CatalogEntry const& entry, Shape shape, int slices, With with) {
  int const P = shape.ranks, M = shape.microbatches;
  std::string const name(entry.name);
  with(Named{.name = name, .slices = entry.takes_slices ? slices : 0});
  if (entry.takes_warmup) {
    for (int depth = 0; depth <= M + P; ++depth) {
      for (int gap = 1; gap <= M; gap += depth > 0 && depth < P ? 1 + M / 2 : 1)
        with(Named{.name = name, .warmup = Warmup{gap}, .limits = {.in_flight = depth}});
    }
  }
  if (entry.takes_group) {
    for (int group = 1; group <= M; ++group) with(Named{.name = name, .group = group});
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
    if (entry.name == "auto" || !entry.flushes || !entry.trains) continue;
    each_option(entry, shape, policy.slices, [&](Named const& named) {
      Table table;
      try {
        table = named.table(shape);
      } catch (Error const&) {
        return;  // not for this shape
      }
      if (table.slices != policy.slices || !fits(table, policy.limits)) return;
      if (places(table) != mapping) return;
      CAPTURE(named.name, static_cast<int>(named.warmup), named.group, named.limits.in_flight);
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

namespace {

/// Six sets of costs: equal, with transfers, an expensive backward, no weight gradients, and two uneven.
Costs some_costs(int which, int stages) {
  if (which < 4) {
    Costs const alike[]{Costs::uniform(1, 1, 1), Costs::uniform(1, 1, 1, 0.25),
                        Costs::uniform(2, 3, 1, 0.5), Costs::uniform(1, 2, 0)};
    return alike[which];
  }
  Random random(static_cast<unsigned>(which));
  return random_costs(stages, random);
}

/// The mapping that a table has; nothing where it has none of the three.
std::optional<Mapping> mapping_of(Table const& table, Shape shape) {
  for (Mapping const m : {Mapping::looped, Mapping::zigzag, Mapping::bidirectional}) {
    if (m == Mapping::zigzag && shape.chunks % 2 != 0) continue;
    if (m == Mapping::bidirectional && (shape.chunks != 1 || shape.ranks % 2 != 0)) continue;
    if (places(table) == places(m, shape)) return m;
  }
  return {};
}

}  // namespace

TEST_CASE("schedule/Auto: within the memory that a published table really uses, never longer",
          "[schedule]") {
  // Every pair of values of family, P, M, V and costs is met; all of their combinations with
  // ./run test --full.
  constexpr int values[]{static_cast<int>(catalog.size()), 8, 6, 4, 6};
  std::set<std::array<int, 4>> met;
  Random random(1350);
  int compared = 0, V_compared = 0;
  auto const hold = [&](std::array<int, 5> const& x) {
    CatalogEntry const& entry = catalog[static_cast<std::size_t>(x[0])];
    if (entry.name == "auto" || !entry.flushes || !entry.trains) return;
    std::string const name(entry.name);
    int const P = 1 + x[1], sizes[]{1, 2, P, P + 1, 2 * P, 3 * P};
    Shape const shape{P, sizes[x[2]], 1 + x[3]};
    Costs const costs = some_costs(x[4], shape.stages());
    Table table;
    try {
      table = Named{name}.table(shape);
    } catch (Error const&) {
      return;  // not for this shape
    }
    auto const mapping = mapping_of(table, shape);
    if (!mapping) return;
    bool fresh = full();
    for (int i = 0; i < 5; ++i) {
      for (int j = 0; j < i; ++j) {
        auto const at = [&](int k) { return x[static_cast<std::size_t>(k)]; };
        fresh = met.insert({i, at(i), j, at(j)}).second || fresh;
      }
    }
    if (!fresh) return;
    Auto policy{costs, {.memory = held(table, 0.5)}, shape.chunks, *mapping, table.slices};
    CAPTURE(name, P, shape.microbatches, shape.chunks, x[4], policy.limits.memory);
    Found const found = policy.search(shape);
    REQUIRE_FALSE(verify(found.table));
    REQUIRE(fits(found.table, policy.limits));
    CHECK(found.makespan_s <= seconds(table, costs) * (1 + 1e-12));
    ++compared;
    if (shape.chunks == 2) ++V_compared;
  };
  if (full()) {
    std::array<int, 5> x{};
    for (std::size_t i = 0; i < 5;) {
      hold(x);
      for (i = 0; i < 5 && ++x[i] == values[i]; ++i) x[i] = 0;
    }
  } else {
    for (int round = 0; round < 4000; ++round) {
      std::array<int, 5> x{};
      for (std::size_t i = 0; i < 5; ++i) x[i] = below(random, values[i]);
      hold(x);
    }
  }
  CAPTURE(compared, V_compared);
  CHECK((compared > 60 && V_compared > 20));
  // Makespans of the authors' generators of V-Min and V-Half at F = I = W = 1 (arXiv 2405.15362),
  // and what their tables hold.
  for (auto const& [P, M, memory, published] : {std::tuple{2, 6, 3.0, 39}}) {
    Auto const policy{Costs::uniform(1, 1, 1), {.memory = memory}, 2, Mapping::zigzag};
    CHECK(policy.search({P, M, 2}).makespan_s <= published);
  }
}

TEST_CASE("schedule/Auto: no random order within the same memory is shorter on two or three ranks",
          "[schedule]") {
  Random random(10);
  int levels = 0, met = 0;
  for (auto const& stages : {std::pair{1, Mapping::looped},
                             {2, Mapping::looped},
                             {2, Mapping::zigzag},
                             {1, Mapping::bidirectional}}) {
    int const V = stages.first;
    Mapping const mapping = stages.second;
    for (int const P : {2, 3}) {
      for (int M = 1; M <= 3; ++M) {
        Shape const shape{P, M, V};
        bool const two_ways = mapping == Mapping::bidirectional;
        if (two_ways && (P % 2 != 0 || M % 2 != 0)) continue;
        Costs const costs = some_costs(below(random, 6), shape.stages());
        auto const owner = [&](int s, int m) {
          bool const up = two_ways ? m >= M / 2 : mapping == Mapping::zigzag && s / P % 2 == 1;
          return V == 1 && !two_ways ? s : up ? P - 1 - s % P : s % P;
        };
        std::map<double, double> best;  // by memory
        for (int n = 0; n < (full() ? 10000 : 1500 / share); ++n) {
          Table t{.stages = shape.stages(), .microbatches = M};
          // Any next action whose inputs are made, in each stage by microbatches; gradients are
          // liked so much more than forwards in this table, and weight gradients in turn.
          unsigned const like = 1 + static_cast<unsigned>(random() % 6);
          std::vector<std::vector<Action>> rows(static_cast<std::size_t>(P));
          std::vector<std::array<int, 6>> done(static_cast<std::size_t>(shape.stages()));
          for (int left = 3 * shape.stages() * M; left > 0; --left) {
            std::vector<Action> can;
            for (int s = 0; s < shape.stages(); ++s) {
              for (int half = 0; half < (two_ways ? 2 : 1); ++half) {
                auto const made = [&](int stage, int kind) {
                  return done[static_cast<std::size_t>(stage)]
                             [static_cast<std::size_t>(kind + 3 * half)];
                };
                int const first = half * (M / 2), last = two_ways ? M / 2 : M;
                for (int kind = 0; kind < 3; ++kind) {
                  int const m = made(s, kind);
                  if (m == last || (kind > 0 && made(s, kind - 1) <= m)) continue;
                  if (kind == 0 && s > 0 && made(s - 1, 0) <= m) continue;
                  if (kind == 1 && s + 1 < shape.stages() && made(s + 1, 1) <= m) continue;
                  Action const a{.kind = kind == 0   ? Kind::forward
                                         : kind == 1 ? Kind::backward_input
                                                     : Kind::backward_weight,
                                 .stage = s,
                                 .microbatch = first + m};
                  can.insert(can.end(), kind == 0 ? 1 : like, a);
                }
              }
            }
            Action const a = can[random() % can.size()];
            int const kind = a.kind == Kind::forward ? 0 : a.kind == Kind::backward_input ? 1 : 2;
            int const half = two_ways && a.microbatch >= M / 2 ? 1 : 0;
            ++done[static_cast<std::size_t>(a.stage)][static_cast<std::size_t>(kind + 3 * half)];
            rows[static_cast<std::size_t>(owner(a.stage, a.microbatch))].push_back(a);
          }
          for (auto const& row : rows) {
            t.begin_row();
            for (Action const& a : row) t.add(a);
          }
          if (n == 0) REQUIRE_FALSE(verify(t));
          auto const [at, first] = best.emplace(held(t, 0.5), 1e300);
          at->second = std::min(at->second, seconds(t, costs));
        }
        double shortest = 1e300;
        for (auto const& [memory, s] : best) {
          shortest = std::min(shortest, s);
          CAPTURE(P, M, V, static_cast<int>(mapping), memory);
          Found const found = Auto{costs, {.memory = memory}, V, mapping}.search(shape);
          CHECK(found.makespan_s <= shortest * (1 + 1e-12));
          met += found.makespan_s >= shortest * (1 - 1e-12) ? 1 : 0;
          ++levels;
        }
      }
    }
  }
  CAPTURE(levels, met);
  CHECK((levels > 50 && met > 10));  // the random orders are no straw men
}

}  // namespace auto_every_test
