// SPDX-License-Identifier: Apache-2.0
#include <stagger/schedule/zero_bubble_h1.hpp>

#include <algorithm>
#include <tuple>
#include <utility>
#include <vector>

#include "grid.hpp"

namespace zero_bubble_h1_test {

using namespace grid;

TEST_CASE("schedule/ZeroBubbleH1: two ranks and four microbatches as published", "[schedule]") {
  CHECK(ZeroBubbleH1{}.table({2, 4}) ==
        oracle::table("0F0,,0F1,0I0,0W0,0F2,0I1,0W1,0F3,0I2,0W2,0I3,0W3 / "
                      ",1F0,1I0,1F1,1I1,1W0,1F2,1I2,1W1,1F3,1I3,1W2,1W3"));
}

TEST_CASE("schedule/ZeroBubbleH1: bubble (P-1)(F+I-W) and peak min(M, P) with one chunk",
          "[schedule]") {
  each([](int P, int M) {
    Table const t = legal(ZeroBubbleH1{}, P, M);
    REQUIRE(highest(peak_in_flight(t)) == std::min(M, P));
    if (M < P) return;
    REQUIRE(evaluated(t).bubble_s == P - 1);
    REQUIRE(evaluated(t, Costs::uniform(3, 4, 2)).bubble_s == (P - 1) * 5.0);
    REQUIRE(evaluated(t, Costs::uniform(5, 4, 4)).bubble_s == (P - 1) * 5.0);
  });
  // Outside W <= min(F, I) the bubble is larger than the formula: four ranks, F = I = 2, W = 3.
  CHECK(evaluated(ZeroBubbleH1{}.table({4, 12}), Costs::uniform(2, 2, 3)).bubble_s == 6);
}

TEST_CASE("schedule/ZeroBubbleH1: with several chunks in PyTorch's order", "[schedule]") {
  // Rounds of M / max(1, M / P) microbatches pass chunk after chunk. Rank r runs (V - 1) rounds and
  // P - 1 - r forwards ahead, then one forward and one I, and from the r-th I on a W behind each.
  for (auto const& [P, V, M] : {std::tuple{2, 2, 4}, {2, 3, 3}, {4, 2, 8}, {4, 3, 12}, {3, 2, 5}}) {
    int const round = M / std::max(1, M / P);
    auto const ranks = P, chunks = V;  // clang 14 does not capture a binding
    std::vector<std::pair<int, int>> queue;
    for (int first = 0; first < M; first += round) {
      for (int chunk = 0; chunk < V; ++chunk) {
        for (int m = first; m < first + round; ++m) queue.emplace_back(m, chunk);
      }
    }
    Table wanted{.stages = P * V, .microbatches = M};
    for (int r = 0; r < P; ++r) {
      wanted.begin_row();
      std::size_t f = 0, i = 0, w = 0;
      auto const back = [&, ranks, chunks](Kind kind, std::size_t& n) {
        auto const [m, chunk] = queue[n++];
        wanted.add({.kind = kind, .stage = (chunks - 1 - chunk) * ranks + r, .microbatch = m});
      };
      auto const ahead = static_cast<std::size_t>((V - 1) * round + P - 1 - r);
      while (w < queue.size()) {
        if (f < queue.size()) {
          auto const [m, chunk] = queue[f++];
          wanted.add({.kind = Kind::forward, .stage = chunk * P + r, .microbatch = m});
          if (f <= ahead) continue;
        }
        if (i < queue.size()) back(Kind::backward_input, i);
        if (i > static_cast<std::size_t>(r) || i == queue.size()) back(Kind::backward_weight, w);
      }
    }
    CAPTURE(P, V, M);
    REQUIRE(ZeroBubbleH1{V}.table({P, M, V}) == wanted);
  }
}

TEST_CASE("schedule/ZeroBubbleH1: legal for every number of chunks and every legal group",
          "[schedule]") {
  each([](int P, int M) {
    for (int V = 2; V <= 4; ++V) {
      for (int N = 0; N <= M; ++N) {
        bool const given = N >= P && (M % N == 0 || M % N >= P);
        if (given || (N == 0 && M % std::max(1, M / P) == 0))
          static_cast<void>(legal(ZeroBubbleH1{V, N}, P, M));
      }
    }
  });
}

TEST_CASE("schedule/ZeroBubbleH1: rows that PyTorch 2.15 makes with several chunks", "[schedule]") {
  CHECK(ZeroBubbleH1{2}.table({2, 2, 2}) ==
        oracle::table("0F0,0F1,2F0,2F1,2I0,2W0,2I1,2W1,0I0,0W0,0I1,0W1 / "
                      "1F0,1F1,3F0,3I0,3F1,3I1,3W0,1I0,3W1,1I1,1W0,1W1"));
  CHECK(ZeroBubbleH1{2}.table({2, 4, 2}) ==
        oracle::table("0F0,0F1,2F0,2F1,2I0,2W0,0F2,2I1,2W1,0F3,0I0,0W0,2F2,0I1,0W1,2F3,2I2,2W2,"
                      "2I3,2W3,0I2,0W2,0I3,0W3 / "
                      "1F0,1F1,3F0,3I0,3F1,3I1,3W0,1F2,1I0,3W1,1F3,1I1,1W0,3F2,3I2,1W1,3F3,3I3,"
                      "3W2,1I2,3W3,1I3,1W2,1W3"));
  CHECK(ZeroBubbleH1{3}.table({2, 3, 3}) ==
        oracle::table("0F0,0F1,0F2,2F0,2F1,2F2,4F0,4F1,4I0,4W0,4F2,4I1,4W1,4I2,4W2,2I0,2W0,2I1,"
                      "2W1,2I2,2W2,0I0,0W0,0I1,0W1,0I2,0W2 / "
                      "1F0,1F1,1F2,3F0,3F1,3F2,5F0,5I0,5F1,5I1,5W0,5F2,5I2,5W1,3I0,5W2,3I1,3W0,"
                      "3I2,3W1,1I0,3W2,1I1,1W0,1I2,1W1,1W2"));
}

}  // namespace zero_bubble_h1_test
