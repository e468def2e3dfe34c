// SPDX-License-Identifier: Apache-2.0
#include <stagger/schedule/auto.hpp>

#include <algorithm>
#include <array>
#include <random>

#include "catch.hpp"
#include "oracle.hpp"

using namespace stagger;
using namespace stagger::schedule;

namespace {

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
  std::array<int, 3> live_{}, count_{M_ * S_, M_*S_, M_*S_};
  double best_ = 0;
};

Costs random_costs(int stages, std::mt19937& random) {
  Costs costs;
  for (int s = 0; s < stages; ++s) {
    costs.stages.push_back({.forward_s = 0.5 * static_cast<double>(1 + random() % 6),
                            .backward_input_s = 0.5 * static_cast<double>(1 + random() % 6),
                            .backward_weight_s = 0.5 * static_cast<double>(random() % 6),
                            .transfer_s = 0.5 * static_cast<double>(random() % 4)});
  }
  return costs;
}

}  // namespace

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
