// SPDX-License-Identifier: Apache-2.0
#include <stagger/schedule/one_f_one_b.hpp>

#include <algorithm>
#include <array>
#include <vector>

#include <stagger/schedule/proof/evaluate.hpp>

#include "catch.hpp"
#include "grid.hpp"
#include "oracle.hpp"

namespace one_f_one_b_test {

using namespace stagger;
using namespace stagger::schedule;

TEST_CASE("schedule/OneFOneB: two ranks and four microbatches as published", "[schedule]") {
  CHECK(OneFOneB{}.table({2, 4}) ==
        oracle::table("0F0,0F1,0B0,0F2,0B1,0F3,0B2,0B3 / 1F0,1B0,1F1,1B1,1F2,1B2,1F3,1B3"));
}

TEST_CASE("schedule/OneFOneB: bubble (P-1)(F+B) from M = P on, peak min(M, P-r)", "[schedule]") {
  for (int P = 1; P <= 8; ++P) {
    for (int M = 1; M <= 32; ++M) {
      CAPTURE(P, M);
      Table const t = OneFOneB{}.table({P, M});
      REQUIRE_FALSE(grid::verified(t));
      Evaluation const e = grid::evaluated(t, Costs::uniform(3, 4, 2));
      if (M >= P) REQUIRE(e.bubble_s == (P - 1) * 9.0);
      for (int r = 0; r < P; ++r)
        REQUIRE(e.peak_in_flight[static_cast<std::size_t>(r)] == std::min(M, P - r));
    }
  }
}

TEST_CASE("schedule/OneFOneB: the warm-up follows DAPPLE's P_A, P_B and wider gaps", "[schedule]") {
  CHECK(OneFOneB{}.warm_up_counts({4, 32}) == std::vector{4, 3, 2, 1});
  CHECK(OneFOneB{.warmup = Warmup::deep}.warm_up_counts({4, 32}) == std::vector{7, 5, 3, 1});
  CHECK(OneFOneB{.warmup = Warmup{3}}.warm_up_counts({4, 32}) == std::vector{10, 7, 4, 1});
  CHECK(OneFOneB{.warmup = Warmup::deep}.warm_up_counts({4, 5}) == std::vector{5, 5, 3, 1});
}

TEST_CASE(
    "schedule/OneFOneB: the deep warm-up hides transfers that cost as much as half of forward and "
    "backward",
    "[schedule]") {
  // DAPPLE, efficiency M / (M + (1 + a)(P - 1)) with a = 2c / (F + B): here c = 1.5, F + B = 3, a
  // = 1.
  for (int P = 2; P <= 6; ++P) {
    int const M = 4 * P;
    Costs const costs = Costs::uniform(1, 1, 1, 1.5);
    double const ideal = 3.0 * (M + 2 * (P - 1));
    CHECK(grid::evaluated(OneFOneB{.warmup = Warmup::deep}.table({P, M}), costs).makespan_s ==
          Approx(ideal));
    CHECK(grid::evaluated(OneFOneB{}.table({P, M}), costs).makespan_s > ideal);
  }
}

TEST_CASE("schedule/OneFOneB: an in-flight limit from P on shortens the warm-up to limit - r",
          "[schedule]") {
  for (int P = 2; P <= 6; ++P) {
    for (int limit = P; limit <= 2 * P; ++limit) {
      OneFOneB const policy{.warmup = Warmup::deep, .in_flight = limit};
      auto const count = policy.warm_up_counts({P, 30});
      for (int r = 0; r < P; ++r) {
        int const wanted = 2 * (P - r) - 1;
        int const expected = 2 * P - 1 <= limit ? wanted : std::max(1, std::min(wanted, limit - r));
        CHECK(count[static_cast<std::size_t>(r)] == expected);
      }
      CHECK_FALSE(grid::verified(policy.table({P, 30}), {.in_flight = limit}));
    }
  }
  // The example of the specification: four stages, five in flight, no convoy.
  CHECK(grid::evaluated(OneFOneB{.warmup = Warmup::deep, .in_flight = 5}.table({4, 16})).bubble_s ==
        9);
}

TEST_CASE("schedule/OneFOneB: below P in flight, no other warm-up that never rises ends sooner",
          "[schedule]") {
  for (int P = 2; P <= 5; ++P) {
    for (int limit = 1; limit < P; ++limit) {
      int const M = 3 * P;
      Table const ours = OneFOneB{.in_flight = limit}.table({P, M});
      REQUIRE_FALSE(grid::verified(ours, {.in_flight = limit}));
      double const ours_s = grid::evaluated(ours).makespan_s;
      std::vector<int> k(static_cast<std::size_t>(P), 1);
      double best = 1e9;
      for (;;) {  // every vector, rising ones left out
        if (std::is_sorted(k.rbegin(), k.rend())) {
          Table t{.stages = P, .microbatches = M};
          bool legal = true;
          for (int r = 0; r < P; ++r) {
            int const ahead = k[static_cast<std::size_t>(r)];
            legal = legal && ahead <= P - r;
            t.begin_row();
            for (int m = 0; m < M + ahead; ++m) {
              if (m >= ahead) t.add({.kind = Kind::backward, .stage = r, .microbatch = m - ahead});
              if (m < M) t.add({.kind = Kind::forward, .stage = r, .microbatch = m});
            }
          }
          if (legal) best = std::min(best, oracle::play(t).makespan);
        }
        std::size_t i = 0;
        while (i < k.size() && k[i] == limit) k[i++] = 1;
        if (i == k.size()) break;
        ++k[i];
      }
      CAPTURE(P, limit);
      CHECK(ours_s == best);
    }
  }
}

namespace {

/// When 1F1B with these counts ends at F = 1, B = 2.
int ends(std::vector<int> const& ahead, int M) {
  std::size_t const P = ahead.size(), n = static_cast<std::size_t>(M);
  std::vector<std::vector<int>> forward(P, std::vector<int>(n)), gradient = forward;
  std::vector<int> now(P, 0);
  auto const run = [&](std::size_t r, std::size_t m) {
    if (m < n) forward[r][m] = now[r] = std::max(now[r], r == 0 ? 0 : forward[r - 1][m]) + 1;
  };
  for (std::size_t r = 0; r < P; ++r) {
    for (std::size_t m = 0; m < static_cast<std::size_t>(ahead[r]); ++m) run(r, m);
  }
  for (std::size_t m = 0; m < n; ++m) {
    for (std::size_t r = P; r-- > 0;)
      gradient[r][m] = now[r] = std::max(now[r], r + 1 == P ? 0 : gradient[r + 1][m]) + 2;
    for (std::size_t r = 0; r < P; ++r) run(r, m + static_cast<std::size_t>(ahead[r]));
  }
  return now[0];
}

/// The soonest end over all counts from rank r on that never rise.
int soonest(std::vector<int>& ahead, std::size_t r, int M, int limit) {
  if (r == ahead.size()) return ends(ahead, M);
  int best = 1 << 30;
  int const most = std::min(r == 0 ? limit : ahead[r - 1], static_cast<int>(ahead.size() - r));
  for (ahead[r] = 1; ahead[r] <= most; ++ahead[r])
    best = std::min(best, soonest(ahead, r + 1, M, limit));
  return best;
}

}  // namespace

TEST_CASE("schedule/OneFOneB: below P in flight on many ranks, where the counts are climbed to",
          "[schedule]") {
  auto const ours = [](int P, int M, int limit) {
    OneFOneB const policy{.in_flight = limit};
    auto const counts = policy.warm_up_counts({P, M});
    CAPTURE(P, M, limit);
    CHECK(*std::max_element(counts.begin(), counts.end()) <= limit);
    CHECK(std::is_sorted(counts.rbegin(), counts.rend()));
    int const s = ends(counts, M);
    CHECK(oracle::play(policy.table({P, M}), Costs::uniform(1, 1, 1)).makespan == s);
    return s;
  };
  // More than 4,096 counts each, and every one of them is tried here.
  for (auto const& [P, M, limit] : {std::array{9, 8, 7},
                                    {9, 12, 8},
                                    {10, 9, 6},
                                    {10, 20, 7},
                                    {11, 12, 7},
                                    {11, 20, 6},
                                    {12, 8, 7},
                                    {12, 9, 6},
                                    {15, 9, 6},
                                    {16, 6, 5},
                                    {16, 8, 6}}) {
    std::vector<int> counts(static_cast<std::size_t>(P), 1);
    CAPTURE(P, M, limit);
    CHECK(ours(P, M, limit) == soonest(counts, 0, M, std::min(limit, M)));
  }
  CHECK(ours(21, 20, 19) == 126);
  CHECK(ours(18, 20, 16) == 126);
}

TEST_CASE("schedule/OneFOneB: a gap below one and a negative limit are refused", "[schedule]") {
  CHECK_THROWS_WITH(OneFOneB{.warmup = Warmup{0}}.table({2, 4}),
                    Catch::Contains("0 units of warm-up gap"));
  CHECK_THROWS_WITH(OneFOneB{.in_flight = -1}.table({2, 4}),
                    Catch::Contains("-1 microbatches in flight"));
}

}  // namespace one_f_one_b_test
