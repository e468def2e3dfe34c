// SPDX-License-Identifier: Apache-2.0
#include <stagger/schedule/proof/bound.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <random>
#include <vector>

#include <stagger/schedule/auto.hpp>
#include <stagger/schedule/proof/evaluate.hpp>

#include "brute_force.hpp"
#include "catch.hpp"
#include "oracle.hpp"
#include "zoo.hpp"

namespace bound_test {

using namespace stagger;
using namespace stagger::schedule;

TEST_CASE("schedule/lower_bound: no order of the same actions beats it, found by trying all",
          "[schedule]") {
  std::mt19937 random(17);
  std::uniform_int_distribution<int> unit(0, 6);
  struct Case {
    std::vector<std::vector<int>> stages;
    int M, rounds;
  };
  double worst = 1;
  int tight = 0, all = 0;
  for (Case const& c :
       {Case{{{0}}, 3, 4}, Case{{{0}, {1}}, 1, 10}, Case{{{0}, {1}}, 2, 40},
        Case{{{0}, {1}}, 3, 12}, Case{{{0}, {1}, {2}}, 1, 10}, Case{{{0}, {1}, {2}}, 2, 40},
        Case{{{0, 1}}, 2, 6}, Case{{{0, 2}, {1, 3}}, 1, 20}, Case{{{0, 3}, {1, 2}}, 1, 20},
        Case{{{0, 2}, {1}}, 2, 3}}) {
    for (int round = 0; round < c.rounds; ++round) {
      int S = 0;
      for (auto const& mine : c.stages) S += static_cast<int>(mine.size());
      Costs costs;
      for (int s = 0; s < S; ++s) {
        costs.stages.push_back({.forward_s = 1.0 + unit(random),
                                .backward_input_s = 1.0 * unit(random),
                                .backward_weight_s = 1.0 * unit(random),
                                .transfer_s = 0.5 * unit(random)});
      }
      Limits limits;
      int const V = static_cast<int>(c.stages[0].size());
      if (round % 3 == 1) limits.in_flight = V + round % 2;
      if (round % 3 == 2)
        limits = {.memory = V + 0.5 * (round % 2), .weight_share = 0.25 * (round % 5)};
      Table any{.stages = S, .microbatches = c.M};
      for (auto const& mine : c.stages) {
        any.begin_row();
        std::vector<Action> const row = brute_force::orders(mine, c.M).front();
        for (Action const& a : row) any.add(a);
      }
      double const best = brute_force::shortest(c.stages, S, c.M, costs, limits);
      double const bound = lower_bound(any, costs, limits);
      CAPTURE(S, c.M, round, limits.in_flight, limits.memory);
      REQUIRE(best < 1e300);
      REQUIRE(bound <= best * (1 + 1e-12));
      worst = std::min(worst, bound / best);
      ++all;
      tight += bound >= best * (1 - 1e-12) ? 1 : 0;
    }
  }
  CHECK(worst > 0.5);
  CHECK(tight > all / 3);
}

TEST_CASE("schedule/lower_bound: never above the makespan of a schedule, whatever the costs",
          "[schedule]") {
  std::mt19937 random(3);
  std::uniform_int_distribution<int> unit(0, 8);
  for (int round = 0; round < 30; ++round) {
    for (auto const& [name, table] : zoo::all(4, 8)) {
      Costs costs;
      for (int s = 0; s < table.stages; ++s) {
        costs.stages.push_back({.forward_s = 0.5 * unit(random),
                                .backward_input_s = 0.5 * unit(random),
                                .backward_weight_s = 0.5 * unit(random),
                                .transfer_s = 0.25 * unit(random)});
      }
      if (round % 2 == 0) costs.overlap_s = 0.5 * unit(random);
      CAPTURE(name, round);
      Evaluation const e = evaluate(table, costs);
      REQUIRE(lower_bound(table, costs) <= e.makespan_s + 1e-9);
      int const most = *std::max_element(e.peak_in_flight.begin(), e.peak_in_flight.end());
      REQUIRE(lower_bound(table, costs, {.in_flight = most}) <= e.makespan_s + 1e-9);
    }
  }
}

TEST_CASE("schedule/lower_bound: the published schedules with zero span bubble meet it",
          "[schedule]") {
  for (int P = 1; P <= 8; ++P) {
    Table const v = ZeroBubbleV{}.table({P, 2 * P, 2});
    CHECK(lower_bound(v) == evaluate(v).makespan_s);
    Table const h2 = ZeroBubbleH2{}.table({P, 2 * P});
    CHECK(lower_bound(h2) == evaluate(h2).makespan_s);
  }
  CHECK(lower_bound(GPipe{}.table({4, 8}), Costs::uniform(1, 1, 1, 0.5)) ==
        Approx(4.5 + 24));  // the last rank starts at 4.5
  CHECK(lower_bound(ForwardOnly{}.table({4, 8})) == 11);
}

TEST_CASE("schedule/lower_bound: each of its terms is met where nothing else is as long",
          "[schedule]") {
  auto const meets = [](Found const& found, double s) {
    CHECK(found.lower_bound_s == Approx(s).epsilon(1e-12));
    CHECK(found.makespan_s == Approx(s).epsilon(1e-12));
  };
  // The first gradient waits for all four slices: 1/4 + 1 forwards, 1 + 1/4 backwards.
  meets(Auto{.costs = Costs::uniform(1, 1, 0), .slices = 4}.search({2, 1}), 2.5);
  // The last weight gradient of the first rank follows the last gradient's way back to it.
  Costs costs;
  costs.stages = {{.forward_s = 1, .backward_input_s = 1, .backward_weight_s = 5},
                  {.forward_s = 0, .backward_input_s = 10, .backward_weight_s = 0}};
  meets(Auto{.costs = costs}.search({2, 2}), 27);
  // The last forward's way to the last rank.
  Costs way;
  way.stages = {{.forward_s = 10}, {.forward_s = 1}};
  Table const forwards = ForwardOnly{}.table({2, 2});
  CHECK(lower_bound(forwards, way) == 21);
  CHECK(evaluate(forwards, way).makespan_s == 21);
  // Room for one: a microbatch takes 4 until its I, and 2 more until its W.
  for (Limits const limits : {Limits{.in_flight = 1}, Limits{.memory = 1, .weight_share = 1}}) {
    meets(Auto{.costs = Costs::uniform(1, 1, 0), .limits = limits}.search({2, 4}), 16);
    meets(Auto{.costs = Costs::uniform(1, 1, 2), .limits = limits}.search({2, 4}), 24);
  }
}

}  // namespace bound_test
