// SPDX-License-Identifier: Apache-2.0
#include <stagger/schedule/auto.hpp>

#include <random>

#include "brute_force.hpp"
#include "catch.hpp"
#include "oracle.hpp"
#include "published.hpp"

using namespace stagger;
using namespace stagger::schedule;

namespace {

Costs random_costs(int stages, std::mt19937& random) {
  Costs costs;
  double const link = 0.25 * static_cast<double>(random() % 4);
  for (int s = 0; s < stages; ++s) {
    costs.stages.push_back({.forward_s = 0.25 * static_cast<double>(1 + random() % 8),
                            .backward_input_s = 0.25 * static_cast<double>(random() % 9),
                            .backward_weight_s = 0.25 * static_cast<double>(random() % 9),
                            .transfer_s = link});
  }
  return costs;
}

Limits random_limits(int ranks, std::mt19937& random) {
  switch (random() % 4) {
    case 0:
      return {.in_flight = 1 + static_cast<int>(random() % static_cast<unsigned>(2 * ranks))};
    case 1:
      return {
          .memory = 1.0 + 0.5 * static_cast<double>(random() % static_cast<unsigned>(3 * ranks)),
          .weight_share = 0.25 * static_cast<double>(random() % 5)};
    default:
      return {};
  }
}

}  // namespace

TEST_CASE("schedule/Auto: the shortest of all orders on small pipelines, found by trying all",
          "[schedule]") {
  std::mt19937 random(42);
  for (auto const& [P, M, rounds] : {std::tuple{1, 3, 6},
                                     {2, 1, 10},
                                     {2, 2, 60},
                                     {2, 3, 40},
                                     {2, 4, 3},
                                     {3, 1, 10},
                                     {3, 2, 60},
                                     {3, 3, 4}}) {
    for (int round = 0; round < rounds; ++round) {
      std::vector<std::vector<int>> stages;
      for (int r = 0; r < P; ++r) stages.push_back({r});
      Auto const policy{random_costs(P, random), random_limits(P, random)};
      CAPTURE(P, M, round, policy.limits.in_flight, policy.limits.memory);
      double const best = brute_force::shortest(stages, P, M, policy.costs, policy.limits);
      Found const found = policy.search({P, M});
      REQUIRE_FALSE(verify(found.table));
      REQUIRE(found.makespan_s == Approx(best).epsilon(1e-12));
      REQUIRE(oracle::play(found.table, policy.costs).makespan == Approx(best).epsilon(1e-12));
      REQUIRE(found.lower_bound_s <= best * (1 + 1e-12));
    }
  }
}

TEST_CASE("schedule/Auto: branch and bound over orders finds what trying all of them finds",
          "[schedule]") {
  std::mt19937 random(7);
  for (auto const& [P, M, rounds] :
       {std::tuple{1, 3, 4}, {2, 2, 20}, {2, 3, 20}, {3, 2, 20}, {3, 3, 1}}) {
    for (int round = 0; round < rounds; ++round) {
      std::vector<std::vector<int>> stages;
      for (int r = 0; r < P; ++r) stages.push_back({r});
      Costs const costs = random_costs(P, random);
      Limits const limits = random_limits(P, random);
      CAPTURE(P, M, round, limits.in_flight, limits.memory);
      REQUIRE(brute_force::Branches(P, M, costs, limits).shortest(1e300) ==
              Approx(brute_force::shortest(stages, P, M, costs, limits)).epsilon(1e-12));
    }
  }
}

TEST_CASE("schedule/Auto: no order of up to three ranks and four microbatches is shorter",
          "[schedule]") {
  int at_bound = 0, all = 0;
  for (unsigned const seed : {1U, 8U, 99U}) {
    std::mt19937 random(seed);
    for (int const P : {2, 3}) {
      for (int round = 0; round < 60; ++round) {
        Auto const policy{random_costs(P, random), random_limits(P, random)};
        CAPTURE(seed, P, round, policy.limits.in_flight, policy.limits.memory);
        Found const found = policy.search({P, 4});
        REQUIRE_FALSE(verify(found.table, {.in_flight = policy.limits.in_flight}));
        REQUIRE(oracle::play(found.table, policy.costs).makespan ==
                Approx(found.makespan_s).epsilon(1e-12));
        double const s = found.makespan_s;
        REQUIRE(brute_force::Branches(P, 4, policy.costs, policy.limits).shortest(s) == s);
        REQUIRE(found.gap() >= -1e-12);
        at_bound += found.gap() < 1e-12 ? 1 : 0;
        ++all;
      }
    }
  }
  CHECK(at_bound < all);  // so that the bound alone does not decide all of them
}

TEST_CASE("schedule/Auto: no order of small pipelines with two stages a rank is shorter",
          "[schedule]") {
  std::mt19937 random(11);
  int at_bound = 0, all = 0;
  for (auto const& [P, M, rounds] : {std::tuple{1, 3, 10},
                                     {2, 1, 20},
                                     {2, 2, 20},
                                     {2, 3, 8},
                                     {2, 4, 3},
                                     {3, 1, 20},
                                     {3, 2, 4}}) {
    for (Mapping const mapping : {Mapping::looped, Mapping::zigzag}) {
      for (int round = 0; round < rounds; ++round) {
        Limits limits = random_limits(P, random);
        if (limits.in_flight > 0) limits.in_flight = std::max(limits.in_flight, 2);
        if (limits.memory > 0) limits.memory = std::max(limits.memory, 2.0);
        Auto const policy{random_costs(2 * P, random), limits, 2, mapping};
        std::vector<std::vector<int>> stages;
        for (int r = 0; r < P; ++r)
          stages.push_back({r, mapping == Mapping::zigzag ? 2 * P - 1 - r : P + r});
        CAPTURE(P, M, static_cast<int>(mapping), round, limits.in_flight, limits.memory);
        brute_force::Starts starts(stages, 2 * P, M, policy.costs, limits);
        Found found;
        try {
          found = policy.search({P, M, 2});
        } catch (Error const&) {
          REQUIRE(starts.shortest(1e300) == 1e300);  // no order keeps the limits
          continue;
        }
        REQUIRE_FALSE(verify(found.table, {.in_flight = limits.in_flight}));
        REQUIRE(oracle::play(found.table, policy.costs).makespan ==
                Approx(found.makespan_s).epsilon(1e-12));
        REQUIRE(starts.shortest(found.makespan_s) == found.makespan_s);
        if (M <= 2 && P < 3)  // it does find what there is to find
          REQUIRE(starts.shortest(found.makespan_s * 1.02) == Approx(found.makespan_s));
        if (M == 1 && P < 3)
          REQUIRE(found.makespan_s ==
                  Approx(brute_force::shortest(stages, 2 * P, M, policy.costs, limits)));
        REQUIRE(found.gap() >= -1e-12);
        at_bound += found.gap() < 1e-12 ? 1 : 0;
        ++all;
      }
    }
  }
  CHECK(at_bound < all);  // so that the bound alone does not decide all of them
}

TEST_CASE("schedule/Auto: no wide gap of 1F1B is shorter where the table is too large to try all",
          "[schedule]") {
  for (double const link : {2.0, 7.0, 13.0}) {
    for (int const limit : {0, 96}) {
      Costs costs;
      for (int s = 0; s < 32; ++s)
        costs.stages.push_back({.forward_s = 0.8 + 0.05 * (s * 5 % 9),
                                .backward_input_s = 1.8 + 0.05 * (s * 7 % 9),
                                .backward_weight_s = 0,
                                .transfer_s = link});
      double const s = Auto{costs, {.in_flight = limit}}.search({32, 600}).makespan_s;
      for (int gap = 1; gap < 32; ++gap) {
        CAPTURE(link, limit, gap);
        OneFOneB const policy{.warmup = static_cast<Warmup>(gap), .in_flight = limit};
        REQUIRE(s <= evaluate(policy.table({32, 600}), costs).makespan_s * (1 + 1e-12));
      }
    }
  }
}

TEST_CASE("schedule/Auto: never worse than the published zero-bubble heuristics", "[schedule]") {
  std::mt19937 random(42);
  int compared = 0, shorter = 0;
  for (int P = 2; P <= 8; ++P) {
    for (int const M : {2, P, 2 * P, 3 * P + 1}) {
      for (double const memory : {0.0, 1.0 * P, 1.5 * P, 2.0 * P}) {  // 1 and 2: ZB-H1, ZB-H2
        double const spread = 0.25 * static_cast<double>(random() % 3);
        auto const about = [&](double s) {
          return s * (1 - spread + 2 * spread * static_cast<double>(random() % 1000) / 1000);
        };
        double const link = 0.05 * static_cast<double>(random() % 5);
        double const input = 0.5 + 0.1 * static_cast<double>(random() % 10);
        double const weight = 0.3 + 0.1 * static_cast<double>(random() % 9);
        Costs costs;
        for (int s = 0; s < P; ++s)
          costs.stages.push_back({.forward_s = about(1),
                                  .backward_input_s = about(input),
                                  .backward_weight_s = about(weight),
                                  .transfer_s = link});
        CAPTURE(P, M, memory, spread, link, input, weight);
        double const ours = Auto{costs, {.memory = memory}}.search({P, M}).makespan_s;
        for (Table const& table : published::zero_bubble(P, M, costs, memory, 0.5)) {
          REQUIRE_FALSE(verify(table));
          double const theirs = oracle::play(table, costs).makespan;
          REQUIRE(ours <= theirs * (1 + 1e-12));
          ++compared;
          shorter += ours < theirs * (1 - 1e-12) ? 1 : 0;
        }
      }
    }
  }
  CHECK(compared > 700);
  CHECK(shorter > 100);
}

TEST_CASE(
    "schedule/Auto: never worse than a schedule here that fits the same limits, and within them",
    "[schedule]") {
  std::mt19937 random(23);
  for (int round = 0; round < 150; ++round) {
    int const P = 2 + static_cast<int>(random() % 7), M = 1 + static_cast<int>(random() % 24);
    Auto const policy{random_costs(P, random), random_limits(P, random)};
    CAPTURE(P, M, round, policy.limits.in_flight, policy.limits.memory, policy.limits.weight_share);
    Found const found = policy.search({P, M});
    REQUIRE_FALSE(verify(found.table, {.in_flight = policy.limits.in_flight}));
    REQUIRE(evaluate(found.table, policy.costs).makespan_s == Approx(found.makespan_s));
    auto const fits = [&](Table const& t) {
      for (int r = 0; r < t.ranks(); ++r) {
        std::vector<Action> row;
        for (Action a : t.row(r)) {
          bool const whole = a.kind == Kind::backward;
          if (whole) a.kind = Kind::backward_input;
          row.push_back(a);
          if (whole)
            row.push_back(
                {.kind = Kind::backward_weight, .stage = a.stage, .microbatch = a.microbatch});
        }
        if (policy.limits.in_flight > 0 && brute_force::held(row, 1) > policy.limits.in_flight)
          return false;
        if (policy.limits.memory > 0 &&
            brute_force::held(row, policy.limits.weight_share) > policy.limits.memory + 1e-9)
          return false;
      }
      return true;
    };
    REQUIRE(fits(found.table));
    std::vector<Table> others{GPipe{}.table({P, M}), OneFOneB{}.table({P, M}),
                              OneFOneB{.warmup = Warmup::deep}.table({P, M}),
                              ZeroBubbleH1{}.table({P, M}), ZeroBubbleH2{}.table({P, M})};
    others.push_back(Interleaved{1}.table({P, M}));
    others.push_back(LoopedBfs{1}.table({P, M}));
    for (int gap = 3; gap < M; ++gap)
      others.push_back(OneFOneB{.warmup = Warmup{gap}}.table({P, M}));
    for (int gap = 1; policy.limits.in_flight > 0 && gap < M; gap += 1 + gap / 2)
      others.push_back(
          OneFOneB{.warmup = Warmup{gap}, .in_flight = policy.limits.in_flight}.table({P, M}));
    for (Table const& other : others) {
      if (fits(other))
        REQUIRE(found.makespan_s <= evaluate(other, policy.costs).makespan_s * (1 + 1e-12));
    }
  }
}

TEST_CASE("schedule/Auto: meets the bound at equal costs, and stays near it at uneven ones",
          "[schedule]") {
  for (int P = 1; P <= 8; ++P) CHECK(Auto{}.search({P, 3 * P}).gap() == Approx(0).margin(1e-12));
  std::mt19937 random(1);
  double sum = 0;
  for (int round = 0; round < 40; ++round) {
    Costs costs;
    for (int s = 0; s < 8; ++s) {
      auto const about = [&] { return 0.8 + 0.4 * static_cast<double>(random() % 1000) / 1000; };
      costs.stages.push_back({.forward_s = about(),
                              .backward_input_s = about(),
                              .backward_weight_s = about(),
                              .transfer_s = 0.05});
    }
    sum += Auto{costs, {.in_flight = 16}}.search({8, 24}).gap();
  }
  CHECK(sum / 40 < 0.03);
}

TEST_CASE(
    "schedule/Auto: on several chunks never worse than a schedule on the same mapping within the "
    "same limits",
    "[schedule]") {
  std::mt19937 random(77);
  for (int round = 0; round < 60; ++round) {
    int const P = 2 + static_cast<int>(random() % 4),
              M = 2 * P * (1 + static_cast<int>(random() % 2)), V = 2;
    Mapping const mapping = round % 2 == 0 ? Mapping::looped : Mapping::zigzag;
    Limits limits;
    if (round % 3 == 1) limits.in_flight = 2 * P + static_cast<int>(random() % 3);
    Auto const policy{random_costs(V * P, random), limits, V, mapping};
    CAPTURE(P, M, round, limits.in_flight);
    Found const found = policy.search({P, M, V});
    REQUIRE_FALSE(verify(found.table, {.in_flight = limits.in_flight}));
    REQUIRE(evaluate(found.table, policy.costs).makespan_s == Approx(found.makespan_s));
    REQUIRE(found.gap() >= -1e-12);
    std::vector<Table> others;
    if (mapping == Mapping::looped) {
      others = {Interleaved{2}.table({P, M, V}), ZeroBubbleH1{2}.table({P, M, V}),
                LoopedBfs{2}.table({P, M, V})};
      for (int group = P; group <= M; ++group) {
        if (M % group != 0 && M % group < P) continue;
        others.push_back(Interleaved{2, group}.table({P, M, V}));
        others.push_back(ZeroBubbleH1{2, group}.table({P, M, V}));
      }
    } else {
      others = {ZeroBubbleV{}.table({P, M, V}), VHalf{}.table({P, M, V}),
                VMin{}.table({P, M, V}),        V1F1B{}.table({P, M, V}),
                Hanayo{}.table({P, M, V}),      DualPipeV{}.table({P, M, V})};
    }
    for (Table const& other : others) {
      auto const peak = peak_in_flight(other);
      bool const fits =
          limits.in_flight == 0 || *std::max_element(peak.begin(), peak.end()) <= limits.in_flight;
      if (fits) REQUIRE(found.makespan_s <= evaluate(other, policy.costs).makespan_s * (1 + 1e-12));
    }
  }
}

TEST_CASE("schedule/Auto: in two directions never worse than DualPipe and Chimera", "[schedule]") {
  std::mt19937 random(5);
  for (int round = 0; round < 30; ++round) {
    int const P = 2 * (1 + static_cast<int>(random() % 3)),
              M = 2 * P + 2 * static_cast<int>(random() % 5);
    Limits limits;
    if (round % 3 == 1) limits.in_flight = P + static_cast<int>(random() % 2);
    Auto const policy{random_costs(P, random), limits, 1, Mapping::bidirectional};
    CAPTURE(P, M, round, limits.in_flight);
    Found const found = policy.search({P, M});
    REQUIRE_FALSE(verify(found.table, {.in_flight = limits.in_flight}));
    REQUIRE(oracle::play(found.table, policy.costs).makespan == Approx(found.makespan_s));
    REQUIRE(found.gap() >= -1e-12);
    for (Table const& other : {DualPipe{}.table({P, M}), Chimera{}.table({P, M})}) {
      auto const peak = peak_in_flight(other);
      if (limits.in_flight == 0 || *std::max_element(peak.begin(), peak.end()) <= limits.in_flight)
        REQUIRE(found.makespan_s <= evaluate(other, policy.costs).makespan_s * (1 + 1e-12));
    }
  }
  CHECK_THROWS_WITH((Auto{.mapping = Mapping::bidirectional}.table({3, 4})),
                    Catch::Contains("3 ranks") && Catch::Contains("nearest legal value is 4"));
}

TEST_CASE("schedule/Auto: memory below one activation and costs that are no numbers are refused",
          "[schedule]") {
  CHECK_THROWS_WITH((Auto{{}, {.memory = 0.5}}.table({2, 4})), Catch::Contains("0.5"));
  CHECK_THROWS_AS((Auto{{}, {.memory = 2, .weight_share = 2}}.table({2, 4})), Error);
  CHECK_THROWS_AS((Auto{{}, {.in_flight = -1}}.table({2, 4})), Error);
  CHECK_THROWS_AS((Auto{Costs::uniform(1, -1, 1), {}}.table({2, 4})), Error);
  CHECK_THROWS_AS(Auto{}.table({2, 4, 2}), Error);
  CHECK_THROWS_AS((Auto{.chunks_per_rank = 3, .mapping = Mapping::zigzag}.table({2, 4, 3})), Error);
  CHECK_THROWS_WITH((Auto{.limits = {.in_flight = 1}, .chunks_per_rank = 2}.table({2, 4, 2})),
                    Catch::Contains("within the limits"));
}
