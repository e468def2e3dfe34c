// SPDX-License-Identifier: Apache-2.0
#include <stagger/schedule/auto.hpp>

#include <random>

#include "brute_force.hpp"
#include "catch.hpp"
#include "oracle.hpp"

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

TEST_CASE(
    "schedule/Auto: three ranks and four microbatches stay between the bound and the heuristics",
    "[schedule]") {
  std::mt19937 random(8);
  for (int round = 0; round < 25; ++round) {
    Auto const policy{random_costs(3, random), random_limits(3, random)};
    Found const found = policy.search({3, 4});
    CHECK_FALSE(verify(found.table));
    CHECK(found.gap() >= -1e-12);
  }
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
    if (policy.limits.in_flight > 0)
      others.push_back(OneFOneB{.in_flight = policy.limits.in_flight}.table({P, M}));
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
