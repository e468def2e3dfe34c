// SPDX-License-Identifier: Apache-2.0
#include <stagger/schedule/interleaved.hpp>

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>
#include <vector>

#include "grid.hpp"

namespace interleaved_test {

using namespace grid;

TEST_CASE("schedule/Interleaved: small tables as published", "[schedule]") {
  CHECK(Interleaved{}.table({2, 4, 2}) ==
        oracle::table("0F0,0F1,2F0,2F1,,,0F2,2B0,0F3,2B1,2F2,0B0,2F3,0B1,,2B2,,2B3,,0B2,,0B3 / "
                      ",1F0,1F1,,3F0,3B0,3F1,3B1,1F2,1B0,1F3,1B1,3F2,3B2,3F3,3B3,,1B2,,1B3"));
  CHECK(Interleaved{}.table({2, 3, 2}) ==
        oracle::table("0F0,0F1,0F2,2F0,2F1,,2F2,2B0,,2B1,,2B2,,0B0,,0B1,,0B2 / "
                      ",1F0,1F1,1F2,3F0,3B0,3F1,3B1,3F2,3B2,,1B0,,1B1,,1B2"));
}

TEST_CASE("schedule/Interleaved: bubble and peak for every legal group size", "[schedule]") {
  each([](int P, int M) {
    for (int V = 1; V <= 4; ++V) {
      for (int N = 0; N <= M; ++N) {
        bool const given = N >= P && (M % N == 0 || M % N >= P);
        bool const rounds = N == 0 && (V == 1 || M % std::max(1, M / P) == 0);
        Interleaved const policy{.chunks_per_rank = V, .group = N};
        if (!given && !rounds) {
          if (N != 0 || V > 1) REQUIRE_THROWS_AS(policy.table({P, M, V}), Error);
          continue;
        }
        Evaluation const e = evaluated(legal(policy, P, M), Costs::uniform(3, 4, 2));
        if (M >= P) REQUIRE(e.bubble_s == (P - 1) * 9.0);
        if (M >= P && V * M * 9.0 > 0)
          REQUIRE(e.bubble_s / e.makespan_s == Approx((P - 1.0) / (V * M + P - 1)));
        int const n = N > 0 ? N : M / std::max(1, M / P);
        for (int r = 0; r < P; ++r) {
          int const peak = std::min(V * M, (V - 1) * n + 2 * (P - 1 - r) + 1);
          REQUIRE(e.peak_in_flight[static_cast<std::size_t>(r)] == peak);
        }
      }
    }
  });
}

TEST_CASE(
    "schedule/Interleaved: the rows of a queue of (microbatch, chunk) as Megatron-LM makes it",
    "[schedule]") {
  // Groups of N microbatches, the last one with what is left; each passes chunk after chunk. A rank
  // runs 2(P - 1 - r) + (V - 1)N of the queue ahead; gradients take the chunks from the other end.
  for (auto const& [P, V, M] : {std::tuple{2, 2, 6}, {2, 3, 7}, {4, 2, 8}, {4, 3, 13}, {3, 4, 9}}) {
    for (int N = P; N <= M; ++N) {
      if (M % N != 0 && M % N < P) continue;
      std::vector<std::pair<int, int>> queue;
      for (int first = 0; first < M; first += N) {
        for (int chunk = 0; chunk < V; ++chunk) {
          for (int m = first; m < std::min(first + N, M); ++m) queue.emplace_back(m, chunk);
        }
      }
      Table wanted{.stages = P * V, .microbatches = M};
      for (int r = 0; r < P; ++r) {
        wanted.begin_row();
        std::size_t f = 0;
        auto const ranks = P;  // clang 14 does not capture a binding
        auto const forward = [&, ranks] {
          auto const [m, chunk] = queue[f++];
          wanted.add({.kind = Kind::forward, .stage = chunk * ranks + r, .microbatch = m});
        };
        auto const ahead = static_cast<std::size_t>((P - r - 1) * 2 + (V - 1) * N);
        while (f < std::min(ahead, queue.size())) forward();
        for (auto const& [m, chunk] : queue) {
          if (f < queue.size()) forward();
          wanted.add({.kind = Kind::backward, .stage = (V - 1 - chunk) * P + r, .microbatch = m});
        }
      }
      CAPTURE(P, V, M, N);
      REQUIRE(Interleaved{V, N}.table({P, M, V}) == wanted);
    }
  }
}

TEST_CASE("schedule/Interleaved: an illegal count is refused with the nearest legal one",
          "[schedule]") {
  CHECK_THROWS_WITH(
      Interleaved{}.table({4, 9, 2}),
      Catch::Contains("9 microbatches") && Catch::Contains("nearest legal value is 8"));
  CHECK_THROWS_WITH(
      (Interleaved{2, 3}.table({4, 8, 2})),
      Catch::Contains("3 microbatches in a group") && Catch::Contains("nearest legal value is 4"));
  CHECK_THROWS_WITH(
      (Interleaved{2, 6}.table({4, 8, 2})),
      Catch::Contains("6 microbatches in a group") && Catch::Contains("nearest legal value is 4"));
  CHECK_THROWS_WITH(
      (Interleaved{2, 4}.table({4, 3, 2})),
      Catch::Contains("3 microbatches") && Catch::Contains("nearest legal value is 4"));
  CHECK_THROWS_WITH((Interleaved{2000000000}.table({2, 4, 2000000000})),
                    Catch::Contains("2000000000 chunks") && Catch::Contains("is 536870911"));
  CHECK_THROWS_WITH((Interleaved{2, -7}.table({4, 8, 2})),
                    Catch::Contains("nearest legal value is 4"));
  for (auto const& [group, nearest] : {std::pair{std::numeric_limits<int>::min(), "value is 4"},
                                       {std::numeric_limits<int>::max(), "value is 8"}})
    CHECK_THROWS_WITH((Interleaved{2, group}.table({4, 8, 2})), Catch::Contains(nearest));
  CHECK_THROWS_WITH(Interleaved{}.table({4, 8, 3}),
                    Catch::Contains("3 chunks") && Catch::Contains("nearest legal value is 2"));
}

TEST_CASE("schedule/Interleaved: rows that PyTorch 2.15 makes", "[schedule]") {
  CHECK(Interleaved{3}.table({2, 2, 3}) ==
        oracle::table("0F0,0F1,2F0,2F1,4F0,4F1,4B0,4B1,2B0,2B1,0B0,0B1 / "
                      "1F0,1F1,3F0,3F1,5F0,5B0,5F1,5B1,3B0,3B1,1B0,1B1"));
  CHECK(Interleaved{2}.table({3, 4, 2}) ==
        oracle::table("0F0,0F1,0F2,0F3,3F0,3F1,3F2,3F3,3B0,3B1,3B2,3B3,0B0,0B1,0B2,0B3 / "
                      "1F0,1F1,1F2,1F3,4F0,4F1,4F2,4B0,4F3,4B1,4B2,4B3,1B0,1B1,1B2,1B3 / "
                      "2F0,2F1,2F2,2F3,5F0,5B0,5F1,5B1,5F2,5B2,5F3,5B3,2B0,2B1,2B2,2B3"));
}

}  // namespace interleaved_test
