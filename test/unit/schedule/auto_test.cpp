// SPDX-License-Identifier: Apache-2.0
#include <stagger/schedule/auto.hpp>

#include <algorithm>
#include <array>
#include <random>

#include <stagger/schedule/proof/evaluate.hpp>
#include <stagger/schedule/proof/verify.hpp>

#include "brute_force.hpp"
#include "catch.hpp"
#include "oracle.hpp"
#include "published.hpp"

namespace auto_test {

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

/// Tries all orders of slices on P ranks with one stage each, in any mixture of microbatches: in a
/// microbatch forwards rise and input gradients fall, a weight gradient comes anywhere behind its
/// input gradient. A branch is left when the work left on a rank cannot end before the best known.
class Slices {
 public:
  Slices(int P, int M, int S, Costs costs, Limits limits)
      : P_(P), M_(M), S_(S), costs_(std::move(costs)), limits_(limits) {}

  double shortest(double cutoff) {
    best_ = cutoff;
    go(0, 0, 3 * P_ * M_ * S_);
    return best_;
  }

 private:
  using Ends = std::array<double, 8>;
  static constexpr double never = -1;

  double cost(int r, int k) const {
    StageCosts const& c = costs_.of(r);
    return (k == 0 ? c.forward_s : k == 1 ? c.backward_input_s : c.backward_weight_s) / S_;
  }
  double& end(int r, int k, int m, int s) {
    return end_[static_cast<std::size_t>((r * 3 + k) * 8 + m * S_ + s)];
  }

  /// When action k of a slice can begin on a rank; `never` where something before it has not run.
  double ready(int r, int k, int m, int s) {
    auto const at = static_cast<std::size_t>(r);
    double from = free_[at];
    auto const behind = [&](double before, double link) {
      if (before < 0) from = never;
      if (from >= 0) from = std::max(from, before + link);
    };
    if (k == 0) {
      if (s > 0) behind(end(r, 0, m, s - 1), 0);
      if (s == 0 && m > 0 && r == 0) behind(end(r, 0, m - 1, 0), 0);  // names of microbatches
      if (r > 0) behind(end(r - 1, 0, m, s), costs_.of(r - 1).transfer_s / S_);
      bool const room = (limits_.in_flight == 0 || live_[at] < limits_.in_flight) &&
                        (limits_.memory == 0 || held_[at] + 1 <= limits_.memory + 1e-9);
      return room ? from : never;
    }
    if (k == 1) {
      if (s + 1 < S_) behind(end(r, 1, m, s + 1), 0);
      behind(end(r, 0, m, S_ - 1), 0);
      if (r + 1 < P_) behind(end(r + 1, 1, m, s), costs_.of(r).transfer_s / S_);
      return from;
    }
    behind(end(r, 1, m, s), 0);
    return from;
  }

  bool hopeless() {
    for (int r = 0; r < P_; ++r) {
      double left = free_[static_cast<std::size_t>(r)], way = 0;
      for (int k = 0; k < 3; ++k) {
        for (int u = 0; u < M_ * S_; ++u) {
          if (end(r, k, u / S_, u % S_) >= 0) continue;
          left += cost(r, k);
          if (k == 1) way = 1;
        }
      }
      if (way > 0) {  // the last input gradient here still goes to the first rank
        double tail = 0;
        for (int q = r - 1; q >= 0; --q) tail += costs_.of(q).transfer_s / S_ + cost(q, 1);
        double const own = static_cast<double>(count_[static_cast<std::size_t>(r)]) * cost(r, 1);
        if (free_[static_cast<std::size_t>(r)] + own + tail + cost(0, 2) >= best_ * (1 - 1e-12))
          return true;
      }
      if (left >= best_ * (1 - 1e-12)) return true;
    }
    return false;
  }

  void go(double now, int last, int left) {
    if (left == 0) {
      best_ = *std::max_element(free_.begin(), free_.begin() + P_);
      return;
    }
    for (int r = 0; r < P_; ++r) {
      auto const at = static_cast<std::size_t>(r);
      bool weighed = false;
      for (int k = 0; k < 3; ++k) {
        for (int u = 0; u < M_ * S_; ++u) {
          int const m = u / S_, s = u % S_;
          if (end(r, k, m, s) >= 0 || (k == 2 && weighed)) continue;
          double const begin = ready(r, k, m, s);
          if (begin < now || (begin == now && r < last && cost(r, k) > 0)) continue;
          weighed = weighed || k == 2;  // one weight gradient is like another
          double const before = free_[at];
          free_[at] = end(r, k, m, s) = begin + cost(r, k);
          double const holds = k == 0   ? 1
                               : k == 1 ? limits_.weight_share - 1
                                        : -limits_.weight_share;
          held_[at] += holds;
          live_[at] += k == 0 ? 1 : k == 2 ? -1 : 0;
          count_[at] -= k == 1 ? 1 : 0;
          if (!hopeless()) go(begin, cost(r, k) > 0 ? r : 0, left - 1);
          count_[at] += k == 1 ? 1 : 0;
          live_[at] -= k == 0 ? 1 : k == 2 ? -1 : 0;
          held_[at] -= holds;
          end(r, k, m, s) = never;
          free_[at] = before;
        }
      }
    }
  }

  int P_, M_, S_;
  Costs costs_;
  Limits limits_;
  std::array<double, 72> end_ = [] {
    std::array<double, 72> none{};
    none.fill(never);
    return none;
  }();
  std::array<double, 3> free_{}, held_{};
  std::array<int, 3> live_{}, count_{M_ * S_, M_* S_, M_* S_};
  double best_ = 0;
};

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
  for (double const link : {2.0, 13.0}) {
    for (int const limit : {0, 96}) {
      Costs costs;
      for (int s = 0; s < 32; ++s)
        costs.stages.push_back({.forward_s = 0.8 + 0.05 * (s * 5 % 9),
                                .backward_input_s = 1.8 + 0.05 * (s * 7 % 9),
                                .backward_weight_s = 0,
                                .transfer_s = link});
      double const s = Auto{costs, {.in_flight = limit}}.search({32, 300}).makespan_s;
      for (int gap = 1; gap < 32; ++gap) {
        CAPTURE(link, limit, gap);
        OneFOneB const policy{.warmup = static_cast<Warmup>(gap), .in_flight = limit};
        REQUIRE(s <= evaluate(policy.table({32, 300}), costs).makespan_s * (1 + 1e-12));
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

TEST_CASE("schedule/Auto: no order of the slices of small pipelines is shorter", "[schedule]") {
  std::mt19937 random(3);
  int at_bound = 0, all = 0;
  for (auto const& [P, M, S, rounds] : {std::tuple{1, 2, 2, 3},
                                        {2, 1, 2, 20},
                                        {2, 1, 3, 20},
                                        {2, 1, 4, 20},
                                        {2, 2, 2, 10},
                                        {3, 1, 2, 20},
                                        {3, 1, 3, 20},
                                        {3, 2, 2, 1}}) {
    for (int round = 0; round < rounds; ++round) {
      Limits limits;
      if (round % 3 == 1) limits.in_flight = S + static_cast<int>(random() % 2);
      if (round % 3 == 2)
        limits = {.memory = S + 0.5 * static_cast<double>(random() % 2), .weight_share = 0.5};
      Auto const policy{.costs = random_costs(P, random), .limits = limits, .slices = S};
      CAPTURE(P, M, S, round, limits.in_flight, limits.memory);
      Found const found = policy.search({P, M});
      REQUIRE(found.table.slices == S);
      REQUIRE_FALSE(verify(found.table, {.in_flight = limits.in_flight}));
      REQUIRE(oracle::play(found.table, policy.costs).makespan ==
              Approx(found.makespan_s).epsilon(1e-12));
      Slices slices(P, M, S, policy.costs, limits);
      REQUIRE(slices.shortest(found.makespan_s) == found.makespan_s);
      if (M * S <= 3 && P < 3)  // it does find what there is to find
        REQUIRE(slices.shortest(found.makespan_s * 1.02) == Approx(found.makespan_s));
      REQUIRE(found.gap() >= -1e-12);
      at_bound += found.gap() < 1e-12 ? 1 : 0;
      ++all;
    }
  }
  CHECK(at_bound < all);
}

TEST_CASE("schedule/Auto: slices shrink the bubble, as they do for seq-1f1b", "[schedule]") {
  for (int P = 2; P <= 8; ++P) {
    double before = 1e300;
    for (int const S : {1, 2, 4}) {
      Found const found = Auto{.slices = S}.search({P, 2 * P});
      CHECK(found.gap() == Approx(0).margin(1e-12));
      CHECK(found.makespan_s == Approx(6.0 * P + (P - 1.0) / S));
      CHECK(found.makespan_s < before);
      before = found.makespan_s;
    }
  }
}

TEST_CASE("schedule/Auto: slices that cannot be are refused, with what can be", "[schedule]") {
  CHECK_THROWS_WITH((Auto{.slices = 0}.table({2, 4})), Catch::Contains("0 slices"));
  CHECK_THROWS_WITH((Auto{.chunks_per_rank = 2, .slices = 2}.table({2, 4, 2})),
                    Catch::Contains("one stage"));
  CHECK_THROWS_WITH((Auto{.mapping = Mapping::bidirectional, .slices = 2}.table({2, 4})),
                    Catch::Contains("one stage"));
  CHECK_THROWS_WITH((Auto{.slices = 40000}.table({2, 4})), Catch::Contains("32767"));
  CHECK_THROWS_WITH((Auto{.limits = {.in_flight = 2}, .slices = 3}.table({2, 4})),
                    Catch::Contains("room for 3"));
}

}  // namespace auto_test
